"""What trainings reached in which time, from the rows that comparisons write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from elastic_tf.plots.style import grid, head, picture, styles

Rows = Sequence[Mapping[str, Any]]


def accuracy_at_budgets(
    comparisons: Mapping[str, Mapping[str, Rows]], *, title: str = ""
) -> Figure:
    """Accuracy of each method over its seconds with its 95 % interval: a panel each comparison.

    `comparisons` are name -> tables, "equal_epochs", "equal_seconds" or both, of rows with
    "method", "seconds", and "mean" and "half_width" of the accuracy in [0, 1] (None: one seed has
    no interval). A method's line joins its rows.
    """
    courses = {name: _courses(tables) for name, tables in comparisons.items()}
    looks = styles(label for curves in courses.values() for label in curves)
    size = (7.0, 4.8) if len(courses) == 1 else (3.7 * len(courses), 4.4)
    figure, panels = picture(*size, 1, len(courses))
    shown: dict[str, Any] = {}
    for axes, (name, curves) in zip(np.ravel(panels), courses.items()):
        for label, (seconds, means, halves) in curves.items():
            look = looks[label]
            spread = np.nan_to_num(halves)
            options: dict[str, Any] = {"color": look.colour, "linestyle": look.line}
            options |= {"linewidth": 1.6, "elinewidth": 0.8, "fmt": look.marker, "capsize": 3}
            half = spread if spread.any() else None
            drawn = axes.errorbar(seconds, means, yerr=half, **options)
            text = f"{label}: {look.trains}" if look.trains else label
            shown.setdefault(text, drawn.lines[0])
        grid(axes)
        axes.set_xlim(0, 1.08 * max(curve[0].max() for curve in curves.values()))
        axes.set(xlabel="training time (s)", ylabel="test accuracy, 95 % interval (%)")
        head(axes, name if len(courses) > 1 else title)
    if len(courses) > 1:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.legend(
        shown.values(), shown, frameon=False, loc="outside lower left", ncols=2, fontsize=8
    )
    return figure


def _courses(tables: Mapping[str, Rows]) -> dict[str, tuple[np.ndarray, ...]]:
    """Of each method seconds, and mean and half width of the accuracy in %, by seconds."""
    points: dict[str, set[tuple[float, float, float]]] = {}
    for row in (row for rows in tables.values() for row in rows):
        half = np.nan if row["half_width"] is None else 100.0 * row["half_width"]
        points.setdefault(row["method"], set()).add((row["seconds"], 100.0 * row["mean"], half))
    return {method: tuple(np.array(sorted(found)).T) for method, found in points.items()}
