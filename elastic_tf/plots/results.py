"""What trainings reached in which time, from the rows that comparisons write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from elastic_tf.plots.charts import Curves
from elastic_tf.plots.style import frame, grid, head, method_of, picture, styles

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
        frame(axes, {label: curve[1:] for label, curve in curves.items()})
        axes.set_xlim(0, 1.08 * max(curve[0].max() for curve in curves.values()))
        axes.set(xlabel="training time (s)", ylabel="test accuracy, 95 % interval (%)")
        head(axes, *((title, reached(curves)) if len(courses) == 1 else (name,)))
    if len(courses) > 1:
        found = _winner([tables.get("equal_seconds", ()) for tables in comparisons.values()])
        figure.suptitle(": ".join(filter(None, (title, found))), x=0.01, ha="left", fontsize=12)
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


def reached(curves: Curves) -> str:
    """Who reaches full training's best accuracy first, or comes nearest to it in its seconds.

    Curves are label -> (seconds, accuracy in %, and what else is drawn).
    """
    points = [
        (label, float(at), float(value))
        for label, (along, values, *_) in curves.items()
        for at, value in zip(along, values)
        if np.isfinite(value)
    ]
    goals = [point for point in points if method_of(point[0]) == "full"]
    rivals = [point for point in points if method_of(point[0]) != "full"]
    if not goals or not rivals:
        label, at, value = max(points, key=lambda point: point[2])
        return f"{label} reaches {value:.1f} %" + ", the most" * (len(curves) > 1)
    _, whole, goal = max(goals, key=lambda point: point[2])
    faster = [point for point in rivals if point[1] <= whole] or rivals
    level = [point for point in faster if round(point[2], 1) >= round(goal, 1)]
    if level:
        label, at, _ = min(level, key=lambda point: point[1])
        return f"{label} reaches full's {goal:.1f} % in {at / whole:.2f} of its seconds"
    label, at, value = max(faster, key=lambda point: point[2])
    below = f"{label} ends {goal - value:.1f} points below full's {goal:.1f} %"
    return f"{below}, in {at / whole:.2f} of its seconds"


def _winner(tables: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The method with the highest mean in most of several tables at equal seconds."""
    best = (max(rows, key=lambda row: row["mean"])["method"] for rows in tables if len(rows) > 1)
    wins = Counter(method_of(name) for name in best)
    if not wins:
        return ""
    name, count = wins.most_common(1)[0]
    return f"at equal seconds {name} has the highest mean in {count} of {sum(wins.values())}"
