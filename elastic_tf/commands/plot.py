"""Draw a timing profile, the course of trainings, or a comparison.

Examples::

    python -m elastic_tf plot --profile mobilenet.json --out times.png
    python -m elastic_tf plot --runs runs/full runs/elastic --out accuracy.png

--profile draws t_dw and t_dy of each tensor. --runs draws accuracy over the seconds of training,
and for each run that leaves tensors out, in a picture beside it, what was trained in which epoch.
--comparison draws accuracy and seconds of each method, at equal epochs and, if they were compared
that way too, at equal seconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from matplotlib.figure import Figure

from elastic_tf import plots, runs, strict_json
from elastic_tf.bounded_files import read_bytes
from elastic_tf.commandline import option, parse
from elastic_tf.commands.history import trained_masks
from elastic_tf.timing import TimingProfile

_KINDS = (".png", ".pdf", ".svg")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to draw, and where to put it."""

    out: Path = option(help=f"the picture, {', '.join(_KINDS)}")
    profile: Optional[Path] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="timing profile to draw"
    )
    runs: tuple[Path, ...] = option((), help="directories of runs to draw in one picture")
    comparison: Optional[Path] = option(  # noqa: UP045
        None, help="what compare wrote: comparison.json"
    )
    title: str = option("", help="above the picture")


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    """Draw; returns the pictures."""
    settings = parse(Settings, __doc__ or "", arguments)
    sources = ("profile", "runs", "comparison")
    given = [f"--{name}" for name in sources if getattr(settings, name)]
    if len(given) != 1:
        raise ValueError(
            "One of --profile, --runs and --comparison must be given. Received: "
            f"{' and '.join(given) or 'none'}."
        )
    if settings.out.suffix not in _KINDS:
        raise ValueError(
            f"`out` must be a picture, {', '.join(_KINDS)}. Received: '{settings.out}'."
        )
    if settings.profile is not None:
        profile = TimingProfile.load(settings.profile)
        figures = {settings.out: plots.timing_bars(profile, title=settings.title)}
    elif settings.comparison is not None:
        figures = {settings.out: of_comparison(settings.comparison, settings)}
    else:
        figures = of_runs([runs.load(path) for path in settings.runs], settings)
    for path, figure in figures.items():
        plots.save(figure, path)
        print(f"Written to {path}")
    return list(figures)


def of_runs(found: Sequence[runs.Run], settings: Settings) -> dict[Path, Figure]:
    """Accuracy over seconds, and a map for each run that leaves tensors out.

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
    drawn = plots.lines(curves, x="training time (s)", y=y, title=settings.title)
    figures = {settings.out: drawn}
    for label, run in named.items():
        masks = trained_masks(run.history)
        if all(mask.all() for mask in masks):
            continue
        path = settings.out.with_name(f"{settings.out.stem}_{_word(label)}{settings.out.suffix}")
        share = np.mean([mask.mean() for mask in masks])
        title = f"{label}: trained (blue), {share:.0%} of tensors x epochs"
        figures[path] = plots.selection_map(masks, names=_names(run, len(masks[0])), title=title)
    return figures


def of_comparison(path: Path, settings: Settings) -> Figure:
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
        return plots.accuracy_and_cost(tables["equal_epochs"], title=settings.title)
    return plots.accuracy_at_budgets(tables, title=settings.title)


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
