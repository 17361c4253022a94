"""What a picture shows, in one sentence computed from the data drawn: its title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elastic_tf.plots.style import method_of

Curves = Mapping[str, tuple[Any, ...]]
Groups = Mapping[str, Mapping[str, float]]


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


def winner(tables: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The method with the highest mean in most of several tables at equal seconds."""
    best = (max(rows, key=lambda row: row["mean"])["method"] for rows in tables if len(rows) > 1)
    wins = Counter(method_of(name) for name in best)
    if not wins:
        return ""
    name, count = wins.most_common(1)[0]
    return f"at equal seconds {name} has the highest mean in {count} of {sum(wins.values())}"


def ends(curves: Curves) -> str:
    """Between which curves all others end."""
    last = {name: float(values[-1]) for name, (_, values, *_) in curves.items() if len(values)}
    return _extremes(last, "ends")


def heights(groups: Groups) -> str:
    """How the lowest label compares with full training, or the lowest with the highest."""
    ratios: dict[str, list[float]] = {}
    for group in groups.values():
        whole = next((group[label] for label in group if method_of(label) == "full"), 0.0)
        for label, height in group.items():
            if whole and method_of(label) != "full":
                ratios.setdefault(label, []).append(height / whole)
    if ratios:
        label = min(ratios, key=lambda name: float(np.mean(ratios[name])))
        low, high = (f"{end:.2f}" for end in (min(ratios[label]), max(ratios[label])))
        return f"{label} is at {low if low == high else f'{low} to {high}'} of full"
    several = len(groups) > 1
    return _extremes(
        {
            f"{label}, {name}".replace("\n", " ") if several else label: height
            for name, group in groups.items()
            for label, height in group.items()
        },
        "is",
    )


def distances(points: Curves, within: float | None, is_log: bool) -> str:
    """How far points are from the diagonal, relative to x where axes are logarithmic."""
    x, y = (np.concatenate([np.ravel(pair[k]) for pair in points.values()]) for k in (0, 1))
    if is_log:
        return f"y is {np.min(y / x):.3g} to {np.max(y / x):.3g} of x"
    off = np.abs(y - x)
    if within is None:
        return f"{off.mean():.2g} apart on average"
    return f"{np.sum(off <= within)} of {len(off)} within {within:g}"


def _extremes(values: Mapping[str, float], verb: str) -> str:
    known = {label: value for label, value in values.items() if np.isfinite(value)}
    if len(known) < 2:
        return "".join(f"{label} {verb} at {value:.3g}" for label, value in known.items())
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return f"{low} {verb} lowest ({known[low]:.3g}), {high} highest ({known[high]:.3g})"
