r"""Measure, once per device, what training each tensor of a model costs there.

Examples::

    python -m elastic_tf profile --model mobilenet --alpha 0.75 \
        --input-size 160 --batch-size 4 --classes 40 --out mobilenet.json
    python -m elastic_tf profile --compare A.json B.json

First it looks for the runtime settings (oneDNN, threads, XLA) that train the model fastest; the
profile is measured under them and names them, and training uses them. --as-is leaves that out.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf.commands import options
from elastic_tf.commands.commandline import command, option, parse
from elastic_tf.files.atomic import directory
from elastic_tf.files.table import Column, format_table
from elastic_tf.timing.profile import TimingProfile

_SHOWN = 15  # tensors in a table
# Half of the steps were further from the median than this: the median of 20, the default, is then
# known to 8 % only (95 %), and a deadline planned with it no better. Three of the four tables in
# profiling/ have 1 %.
_MOST_SPREAD = 0.1


@dataclasses.dataclass(frozen=True)
class Settings(options.Network):
    """What to measure, and where to put it."""

    out: Path | None = option(None, help="JSON file for the profile")
    classes: int | None = option(None, help="classes of the head")
    repeats: int = option(20, help="timed steps behind each median")
    as_is: bool = option(False, help="do not search settings, measure under the present ones")
    xla: bool = option(False, help="compile the step with XLA (with --as-is)")
    compare: tuple[Path, ...] = option((), help="instead, set two profiles of a model side by side")


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile, or compare."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    settings = parse(Settings, __doc__ or "", words)
    if settings.compare:
        print(comparison([TimingProfile.load(path) for path in settings.compare]))
    elif settings.out is None or settings.classes is None:
        raise ValueError(
            "A profile needs a file and the number of classes. Received: "
            f"out={settings.out}, classes={settings.classes}. Give --out and --classes."
        )
    else:
        directory(settings.out.parent)
        print(report(measured(settings) if settings.as_is else searched(settings, words)))
        print(f"Written to {settings.out}")


def measured(settings: Any) -> TimingProfile:
    """Measure and save, under the settings of this process."""
    from elastic_tf.commands.training import harness
    from elastic_tf.timing.profiler import profile_model

    print("Building the model and measuring its steps ...", flush=True)
    model, batch = harness.model_and_batch(settings)
    profile = profile_model(model, *batch, repeats=settings.repeats)
    profile.save(settings.out)
    return profile


def searched(settings: Any, words: Sequence[str]) -> TimingProfile:
    """Search the settings, then measure under the best in a process of its own."""
    from elastic_tf.commands.settings_search import search

    print("Trying runtime settings, each in turn with the defaults in a process of its own.")
    print("This takes minutes; --as-is leaves it out.", flush=True)
    best, trials = search(settings)
    print(f"Best: {best}. Measuring under it.", flush=True)
    words = command("profile", [*words, "--as-is", *["--xla"] * best.xla])
    subprocess.run(
        [sys.executable, *words], env=best.environment(), stdout=subprocess.DEVNULL, check=True
    )
    profile = dataclasses.replace(TimingProfile.load(settings.out), trials=trials)
    profile.save(settings.out)
    return profile


def comparison(profiles: Sequence[TimingProfile]) -> str:
    """Two profiles of one model side by side, the tensors with the largest difference in share.

    Raises:
        ValueError: other than two, or of different models.
    """
    counts = [one.count for one in profiles]
    if len(profiles) != 2 or profiles[0].tensors != profiles[1].tensors:
        raise ValueError(
            f"Two profiles of one model can be compared. Received: profiles of {counts} tensors "
            "that are not the same."
        )
    parts = [(p.t_forward, p.t_dw.sum(), p.t_dy.sum(), p.t_full) for p in profiles]
    shares = [(p.t_dw + p.t_dy) / p.t_full for p in profiles]
    moved = np.argsort(-np.abs(shares[1] - shares[0]), kind="stable")[:_SHOWN]
    rows = [
        (name, f"{a / 1e3:.2f} ms", f"{b / 1e3:.2f} ms", f"{b / max(a, 1e-9):.2f}")
        for name, a, b in zip(("forward", "t_dw", "t_dy", "full step"), *parts)
    ]
    for k in moved:
        a, b = shares[0][k], shares[1][k]
        name = profiles[0].tensors[k].name
        rows.append((name, f"{a:.2%}", f"{b:.2%}", f"{b / max(a, 1e-9):.2f}"))
    columns = ("step and shares of it", "A", "B", "B / A")
    one, two = (f"{p.device.get('name', '?')} ({p.created[:10]})" for p in profiles)
    table = format_table([dict(zip(columns, row)) for row in rows], columns)
    return f"A: {one}\nB: {two}\n\n{table}"


def report(profile: TimingProfile) -> str:
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
        for k in np.argsort(cost)[::-1][:_SHOWN]
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
        f"Device: {profile.device['name']}, {profile.device['cores']} cores; {profile.settings}",
        f"Full step {profile.t_full / 1e3:.2f} ms (spread {profile.spread:.0%}), forward pass "
        f"{profile.t_forward / 1e3:.2f} ms ({profile.t_forward / profile.t_full:.0%}, may be off "
        f"by {profile.uncertainty:.1%}); {profile.share_attributed:.1%} of the backward time "
        f"attributed to {profile.count} tensors",
        f"The measurement is noisy, the spread is above {_MOST_SPREAD:.0%}: profile again on an "
        "idle machine"
        if profile.spread > _MOST_SPREAD
        else "The measurement is fine",
    ]
    if profile.note:
        lines.append(f"Times by differences of whole steps: {profile.note}")
    return "\n".join(lines)
