"""Draws the course of trainings and comparisons: what the command `plot` does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from elastic_tf import plots
from elastic_tf.commands.training.history import trained_masks
from elastic_tf.files import strict_json
from elastic_tf.files.bounded import read_bytes
from elastic_tf.runs import run as runs
from elastic_tf.timing.profile import TimingProfile


def of_runs(found: Sequence[runs.Run], out: Path, *, title: str = "") -> dict[Path, Figure]:
    """Accuracy over seconds, and a map for each run that leaves tensors out, by their files.

    Args:
        found: the runs.
        out: file of the first; those of the maps have the run in their name too.
        title: above the first.

    Raises:
        ValueError: a run has no epoch yet, or was not written by `train`.
    """
    named = dict(zip(labels(found), found))
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for label, run in named.items():
        if not run.history:
            raise ValueError(
                f"`runs` must have finished an epoch. Received: '{run.path}', which has none yet."
            )
        _check_history(run)
        seconds = np.cumsum([epoch["seconds"] for epoch in run.history]).tolist()
        curves[label] = (seconds, [100 * epoch["val_accuracy"] for epoch in run.history])
    y = f"{_evaluated_on(found)} accuracy (%)"
    figures = {out: plots.lines(curves, x="training time (s)", y=y, title=title)}
    for label, run in named.items():
        masks = trained_masks(run.history)
        if all(mask.all() for mask in masks):
            continue
        path = out.with_name(f"{out.stem}_{_word(label)}{out.suffix}")
        share = np.mean([mask.mean() for mask in masks])
        said = f"{label}: trained (blue), {share:.0%} of tensors x epochs"
        figures[path] = plots.selection_map(masks, names=_names(run, len(masks[0])), title=said)
    return figures


def of_comparison(path: Path, *, title: str = "") -> Figure:
    """Accuracy of each method over its seconds.

    Raises:
        ValueError: the file is none of a comparison.
    """
    try:
        found = strict_json.parse(read_bytes(path))
        tables = found.get("tables") if isinstance(found, dict) else None
        if not isinstance(tables, dict):
            raise ValueError("holds no tables")
        if "equal_epochs" not in tables:
            raise ValueError(f"holds tables of {', '.join(tables) or 'nothing'}")
    except ValueError as error:
        raise ValueError(
            f"`comparison` must be what compare wrote. Received: '{path}', which {error}."
        ) from error
    if "equal_seconds" not in tables:
        return plots.accuracy_and_cost(tables["equal_epochs"], title=title)
    return plots.accuracy_at_budgets(tables, title=title)


def _check_history(run: runs.Run) -> None:
    """Refuse a history that does not say what is drawn."""
    for number, epoch in enumerate(run.history, start=1):
        for name in ("seconds", "val_accuracy"):
            if not isinstance(epoch.get(name), (int, float)):
                raise ValueError(
                    f"`runs` must be written by python -m elastic_tf train. Received: '{run.path}',"
                    f" whose epoch {number} has `{name}` {epoch.get(name)!r}."
                )


def labels(found: Sequence[runs.Run]) -> list[str]:
    """Method and rho of each run, with its directory where others are called the same."""
    given = [run.config["settings"] for run in found]
    short = [
        settings.get("method", "run")
        + (f", rho={settings['rho']:g}" if settings.get("rho") is not None else "")
        for settings in given
    ]
    count = Counter(short)
    return [
        label if count[label] == 1 else f"{label} ({run.path})" for label, run in zip(short, found)
    ]


def _evaluated_on(found: Sequence[runs.Run]) -> str:
    """What the accuracies in the histories were measured on."""
    parts = {bool(run.config["settings"].get("validation")) for run in found}
    return "validation or test" if len(parts) > 1 else "validation" if parts == {True} else "test"


def _names(run: runs.Run, count: int) -> Sequence[str]:
    """Of the tensors, where the run holds its profile."""
    path = run.path / "profile.json"
    if not path.is_file():
        return ()
    names = [spec.name for spec in TimingProfile.load(path).tensors]
    return names if len(names) == count else ()


def _word(label: str) -> str:
    """A label as part of a file's name."""
    return re.sub(r"[^\w.-]+", "_", label).strip("_")
