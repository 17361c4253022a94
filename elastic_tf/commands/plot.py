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
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from elastic_tf.commands.commandline import loading, option, parse
from elastic_tf.runs import run
from elastic_tf.timing.profile import TimingProfile

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
    profile = None if settings.profile is None else TimingProfile.load(settings.profile)
    trained = [run.load(path) for path in settings.runs]
    with loading("Matplotlib"):
        from elastic_tf import plots
        from elastic_tf.commands import drawing

    if profile is not None:
        figures = {settings.out: plots.timing_bars(profile, title=settings.title)}
    elif settings.comparison is not None:
        shown = drawing.of_comparison(settings.comparison, title=settings.title)
        figures = {settings.out: shown}
    else:
        figures = drawing.of_runs(trained, settings.out, title=settings.title)
    for path, figure in figures.items():
        plots.save(figure, path)
        print(f"Written to {path}")
    return list(figures)
