"""Profiles as text: the tables that come with the project, two side by side, one alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elastic_tf.commands.commandline import command, typed
from elastic_tf.files.table import Column, format_table
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.timing.runtime import SettingsTrial

# Half of the steps were further from the median than this: the median of 20, the default, is then
# known to 8 % only (95 %), and a deadline planned with it no better. Three of the four tables in
# profiling/ have 1 %.
_MOST_SPREAD = 0.1
# The noise of the forward share, half of this as a standard deviation, is then no larger than what
# the time model is off by itself, 0.02 (elastic_tf.budget.ratio).
_MOST_UNCERTAINTY = 0.04


def listing(folder: Path) -> str:
    """The profiles below a folder, a line each."""
    rows = []
    for path in sorted(folder.glob("*/*.json")):
        profile = TimingProfile.load(path)
        rows.append(
            {
                "table": str(path.relative_to(folder)),
                "device": profile.device.get("name", "-"),
                "tensors": profile.count,
                "batch": profile.batch_size,
                "full": profile.t_full / 1e3,
                "forward": profile.t_forward / profile.t_full,
            }
        )
    columns = (
        "table",
        "device",
        Column("tensors", "N"),
        "batch",
        Column("full", "full step ms", ".1f"),
        Column("forward", "forward", ".0%"),
    )
    if rows:
        return format_table(rows, columns)
    return (
        f"There are no tables in '{folder}'. Those of devices measured before come with the "
        "project's checkout, not with an installed package: give its folder profiling/tables, or "
        "one of your own with a folder for each device. To measure this device, see "
        f"{typed(command('profile', ['--help']))}."
    )


def comparison(one: TimingProfile, two: TimingProfile, dearest: int = 15) -> str:
    """Two profiles of one model side by side, the tensors with the largest difference in share.

    Raises:
        ValueError: the profiles are of different models.
    """
    if one.tensors != two.tensors:
        raise ValueError(
            "Profiles of one model can be compared. Received: profiles of "
            f"{one.count} and {two.count} tensors that are not the same."
        )
    pair = (one, two)
    ms = [[p.t_forward / 1e3, p.t_dw.sum() / 1e3, p.t_dy.sum() / 1e3, p.t_full / 1e3] for p in pair]
    lines = [
        {"part": part, "one": ms[0][k], "two": ms[1][k], "ratio": ms[1][k] / max(ms[0][k], 1e-9)}
        for k, part in enumerate(("forward", "t_dw", "t_dy", "full step"))
    ]
    shares = [(p.t_dw + p.t_dy) / p.t_full for p in pair]
    moved = np.argsort(-np.abs(shares[1] - shares[0]), kind="stable")[:dearest]
    tensors = [
        {
            "part": one.tensors[k].name if one.tensors else str(k),
            "one": shares[0][k],
            "two": shares[1][k],
            "ratio": shares[1][k] / max(shares[0][k], 1e-9),
        }
        for k in moved
    ]
    names = [f"{p.device.get('name', '?')} ({p.created[:10]})" for p in pair]
    times = format_table(lines, _side_by_side("ms per step", ".2f"))
    parts = format_table(tensors, _side_by_side("share of the full step", ".2%"))
    return f"A: {names[0]}\nB: {names[1]}\n\n{times}\n\n{parts}"


def _side_by_side(title: str, number_format: str) -> tuple[Column, ...]:
    """Columns that set A beside B."""
    return (
        Column("part", title),
        Column("one", "A", number_format),
        Column("two", "B", number_format),
        Column("ratio", "B / A", ".2f"),
    )


def report(profile: TimingProfile, dearest: int) -> str:
    """The tensors that cost most, and how sure the profile is."""
    cost = profile.t_dw + profile.t_dy
    rows = [
        {
            "tensor": profile.tensors[k].name,
            "shape": "x".join(map(str, profile.tensors[k].shape)),
            "t_dw": profile.t_dw[k] / 1e3,
            "t_dy": profile.t_dy[k] / 1e3,
            "share": cost[k] / profile.t_full,
        }
        for k in np.argsort(cost)[::-1][:dearest]
    ]
    columns = (
        "tensor",
        "shape",
        Column("t_dw", "t_dw ms", ".3f"),
        Column("t_dy", "t_dy ms", ".3f"),
        Column("share", "of full step", ".1%"),
    )
    lines = [
        format_table(rows, columns),
        "",
        f"Device: {profile.device['name']}, {profile.device['cores']} cores",
        f"Full step {profile.t_full / 1e3:.2f} ms (spread {profile.spread:.0%}), forward pass "
        f"{profile.t_forward / 1e3:.2f} ms ({profile.t_forward / profile.t_full:.0%})",
        f"The forward share may be off by {profile.uncertainty:.1%} of the full step",
        verdict(profile),
        f"{profile.count} tensors, {len(profile.items)} cost items; "
        f"{profile.share_attributed:.1%} of the backward time attributed",
        f"Settings: {profile.settings}",
    ]
    if profile.note:
        lines.append(f"Times by differences of whole steps: {profile.note}")
    return "\n".join(lines)


def verdict(profile: TimingProfile) -> str:
    """Whether to rely on the profile, in a line."""
    found = []
    if profile.spread > _MOST_SPREAD:
        found.append(f"the spread is above {_MOST_SPREAD:.0%}")
    if profile.uncertainty > _MOST_UNCERTAINTY:
        found.append(f"the forward share may be off by more than {_MOST_UNCERTAINTY:.0%}")
    if not found:
        return "The measurement is fine"
    return f"The measurement is noisy, {' and '.join(found)}: profile again on an idle machine"


def trial_line(trial: SettingsTrial) -> str:
    """What came of a setting, in one line."""
    if trial.ratio is None:
        return f"  {str(trial.settings):<45} failed: {trial.error}"
    return f"  {str(trial.settings):<45} {trial.ratio:5.2f} x the step time of the defaults"
