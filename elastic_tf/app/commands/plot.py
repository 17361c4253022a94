"""Draw a timing profile, the course of trainings, or a comparison.

Examples::

    python -m elastic_tf plot --profile mobilenet.json --out times.png
    python -m elastic_tf plot --runs runs/full runs/elastic --out accuracy.png

--profile draws t_dw and t_dy of each tensor. --runs draws accuracy over the seconds of training,
from the head alone on, and for each run that leaves tensors out, in a picture beside it, what was
trained in which epoch.
--comparison draws the accuracy of each method over its seconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_tf.app import runs
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import read_json
from elastic_tf.plan import Plan
from elastic_tf.timing.profile import TimingProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to draw, and where to put it."""

    out: Path = option(help="the picture: .png, .pdf or .svg")
    profile: Path | None = option(None, help="timing profile to draw")
    runs: tuple[Path, ...] = option((), help="directories of runs to draw in one picture")
    comparison: Path | None = option(None, help="what compare wrote: comparison.json")
    title: str = option("", help="above the picture")


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    """Draw; returns the pictures."""
    settings = parse(Settings, __doc__ or "", arguments)
    title = settings.title
    if sum(map(bool, (settings.profile, settings.runs, settings.comparison))) != 1:
        raise ValueError(
            "One of --profile, --runs and --comparison must be given. Received: "
            f"profile={settings.profile}, runs={settings.runs}, comparison={settings.comparison}."
        )
    from elastic_tf import plots

    if settings.profile is not None:
        profile = TimingProfile.load(settings.profile)
        figures = {settings.out: plots.timing_bars(profile, title=title)}
    elif settings.comparison is not None:
        found = read_json(settings.comparison)
        if not isinstance(found, dict) or "equal_epochs" not in found.get("tables", ()):
            raise ValueError(
                "`comparison` must be what compare wrote. Received: "
                f"'{settings.comparison}', which holds no such tables."
            )
        figures = {settings.out: plots.accuracy_at_budgets(found["tables"], title=title)}
    else:
        figures = of_runs([runs.load(path) for path in settings.runs], settings.out, title=title)
    for path, figure in figures.items():
        plots.save(figure, path)
        print(f"Written to {path}")
    return list(figures)


def of_runs(found: Sequence[runs.Run], out: Path, *, title: str = "") -> dict[Path, Figure]:
    """Accuracy over seconds in `out`, and beside it a map for each run that leaves tensors out."""
    from elastic_tf import plots

    parts = ["validation" if one.config["settings"].get("validation") else "test" for one in found]
    if len(set(parts)) > 1:
        said = ", ".join(f"{part} images of '{run.path}'" for part, run in zip(parts, found))
        raise ValueError(
            "Accuracies in one picture must be of the same part of the images. Received: "
            f"{said}. Train with the same --validation, or draw them one by one."
        )
    curves, maps = {}, {}
    for label, run in zip(labels(found), found):
        points = course(run)
        if not points:
            raise ValueError(
                "`runs` must be written by python -m elastic_tf train, have finished an epoch, and "
                f"with --seconds have --validation. Received: '{run.path}', without accuracies: an "
                "interrupted one, or one that had time for the head alone."
            )
        curves[label] = tuple(zip(*((seconds, 100 * accuracy) for seconds, accuracy in points)))
        plans = runs.trained_plans(run.history)
        if any(plan != Plan.full(len(plan)) for plan in plans):
            word = re.sub(r"[^\w.-]+", "_", label).strip("_")
            profile = run.path / "profile.json"
            tensors = TimingProfile.load(profile).tensors if profile.is_file() else ()
            maps[out.with_name(f"{out.stem}_{word}{out.suffix}")] = plots.selection_map(
                plans, names=[spec.name for spec in tensors], title=label
            )
    x, y = "training time, head included (s)", f"{parts[0]} accuracy (%)"
    return {out: plots.lines(curves, x=x, y=y, title=title), **maps}


def course(run: runs.Run) -> list[tuple[float, float]]:
    """Seconds since the training began and accuracy, of the head and after each epoch."""
    result = run.result or {}
    first, parts = run.history[0] if run.history else {}, result.get("seconds")
    if parts:  # a training in so many seconds: its first epoch has the head in it
        names = ("start", "foretold", "chosen", "kept", "head")
        before = [parts.get(name, 0.0) for name in names]
        passed, points = sum(before[:2]), [(sum(before), result.get("head_accuracy"))]
    else:
        passed = first.get("head_seconds")
        points = [(passed, first.get("head_accuracy"))]
    for epoch in run.history:
        passed = None if passed is None else passed + epoch["seconds"]
        points.append((passed, epoch.get("val_accuracy")))
    if result:  # of what is kept, the head solved again
        passed = result["training_seconds"] + result.get("head_seconds", 0.0)
        points.append((passed, result.get("validation_accuracy")))
    return [(float(x), float(y)) for x, y in points if x is not None and y is not None]


def labels(found: Sequence[runs.Run]) -> list[str]:
    """Method, rho or seconds of each run; its directory where others are called the same."""
    short = []
    for settings in (run.config["settings"] for run in found):
        rho, seconds = settings.get("rho"), settings.get("seconds")
        said = f", rho={rho:g}" if rho is not None else f", {seconds:g} s" if seconds else ""
        short.append(settings.get("method", "run") + said)
    same = {one for one in short if short.count(one) > 1}
    return [f"{one} ({run.path})" if one in same else one for one, run in zip(short, found)]
