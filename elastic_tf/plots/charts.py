"""Lines, bars and points, and what trainings reached in which time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from elastic_tf.plots.style import DARK, PALE, few, grid, head, picture, styles

Curves = Mapping[str, tuple[Any, ...]]
Groups = Mapping[str, Mapping[str, float]]
Tables = Mapping[str, Sequence[Mapping[str, Any]]]  # of rows that comparisons write

_MOST_NAMED, _LONGEST = 40, 24  # classes; letters of their names
_MOST_MARKERS = 30  # on every point of a longer line they would hide it


def lines(
    curves: Curves, *, x: str, y: str, title: str = "", is_log: bool = False, is_whole: bool = False
) -> Figure:
    """Lines of label -> (values along x, values along y); methods have colours of their own.

    A third part is half the height of a band around the line, not a number where there is none.
    `x` and `y` say what stands along them, with the unit. x is logarithmic, or whole numbers, as
    epochs are, or begins at 0.
    """
    figure, axes = picture(7.0, 4.2)
    for (name, (along, values, *band)), look in zip(curves.items(), styles(curves).values()):
        marker = look.marker if len(along) <= _MOST_MARKERS else ""
        options = {"color": look.colour, "linestyle": look.line, "linewidth": 1.8}
        axes.plot(along, values, label=name, marker=marker, markersize=4.5, **options)
        for half in band:
            low, high = np.subtract(values, half), np.add(values, half)
            axes.fill_between(along, low, high, color=look.colour, alpha=0.12, linewidth=0)
    axes.set(xlabel=x, ylabel=y)
    if is_log:
        axes.set_xscale("log")
    elif is_whole:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    else:  # the margin is of the whole axis, so that the last marker is not cut
        axes.set_xlim(0, 1.05 * max(max(along) for along, *_ in curves.values()) or None)
    grid(axes)
    axes.legend(frameon=False)
    head(axes, title)
    return figure


def accuracy_at_budgets(comparisons: Mapping[str, Tables], *, title: str = "") -> Figure:
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
    spreads = [half for curves in courses.values() for *_, half in curves.values()]
    has_halves = any(np.nan_to_num(half).any() for half in spreads)
    accuracy = "test accuracy, 95 % interval (%)" if has_halves else "test accuracy (%)"
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
        axes.set(xlabel="training time (s)", ylabel=accuracy)
        head(axes, name if len(courses) > 1 else title)
    if len(courses) > 1:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.legend(
        shown.values(), shown, frameon=False, loc="outside lower left", ncols=2, fontsize=8
    )
    return figure


def _courses(tables: Tables) -> dict[str, tuple[np.ndarray, ...]]:
    """Of each method seconds, and mean and half width of the accuracy in %, by seconds."""
    points: dict[str, set[tuple[float, float, float]]] = {}
    for row in (row for rows in tables.values() for row in rows):
        half = np.nan if row["half_width"] is None else 100.0 * row["half_width"]
        points.setdefault(row["method"], set()).add((row["seconds"], 100.0 * row["mean"], half))
    return {method: tuple(np.array(sorted(found)).T) for method, found in points.items()}


def bars(
    groups: Groups, *, y: str, title: str = "", notes: Mapping[str, Mapping[str, str]] | None = None
) -> Figure:
    """Groups of bars: group -> label -> height; a label has one colour in all groups.

    `notes`, of the same form, stand above the bars in the place of the heights.
    """
    looks = styles(label for group in groups.values() for label in group)
    figure, axes = picture(max(5.0, 1.5 + 0.55 * sum(len(bar) + 1 for bar in groups.values())), 4.2)
    place, ticks, seen = 0, [], set[str]()
    for group, heights in groups.items():
        ticks.append(place + (len(heights) - 1) / 2)
        for label, height in heights.items():
            look, shown = looks[label], "" if label in seen else label  # once in the legend
            seen.add(label)
            axes.bar(place, height, width=0.85, label=shown, color=look.colour, hatch=look.hatch)
            number = f"{height:,.0f}" if abs(height) >= 100 else f"{height:.3g}"
            note = number if notes is None else notes[group][label]
            side = "top" if height < 0 else "bottom"
            axes.annotate(note, (place, height), ha="center", va=side, fontsize=7)
            place += 1
        place += 1
    axes.set_xticks(ticks, list(groups))
    axes.set_ylabel(y)
    axes.margins(y=0.12)
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=8)
    head(axes, title)
    return figure


def agreement(
    points: Curves,
    *,
    x: str,
    y: str,
    title: str = "",
    within: float | None = None,
    is_log: bool = False,
) -> Figure:
    """Points of label -> (values along x, values along y), and the diagonal where both agree.

    `within` is the half-width of a band around it. Values on logarithmic axes are above 0.
    """
    figure, axes = picture(5.4, 4.8)
    every = np.concatenate([np.ravel(part) for pair in points.values() for part in pair])
    if is_log:
        axes.set(xscale="log", yscale="log")
        ends = np.array([every.min() / 1.5, every.max() * 1.5])
    else:
        margin = 0.05 * float(np.ptp(every)) or 0.05
        ends = np.array([every.min() - margin, every.max() + margin])
    if within is not None:
        label = f"within {within:g}"
        axes.fill_between(ends, ends - within, ends + within, color=PALE, label=label)
    axes.plot(ends, ends, color=DARK, linewidth=1.0)
    for name, look in styles(points).items():
        options = {"color": look.colour, "marker": look.marker, "linewidths": 0, "zorder": 2}
        axes.scatter(*points[name], s=26, label=name, alpha=0.85, **options)
    axes.set(xlim=ends, ylim=ends, aspect="equal", xlabel=x, ylabel=y)
    axes.legend(frameon=False, fontsize=8)
    head(axes, title)
    return figure


def confusion(counts: np.ndarray, names: Sequence[str], *, title: str = "") -> Figure:
    """Images of a class (down) that were taken for one (across); shape (C, C)."""
    side = min(3.0 + 0.2 * len(names), 8.0)
    figure, axes = picture(side, side)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    shown = range(len(names)) if len(names) <= _MOST_NAMED else few(len(names))
    told = [names[k][:_LONGEST] for k in shown]
    axes.set_xticks(shown, told, rotation=90, fontsize=7)
    axes.set_yticks(shown, told, fontsize=7)
    if len(names) <= _MOST_NAMED:
        for (right, found), count in np.ndenumerate(counts):
            colour = "white" if shares[right, found] > 0.5 else DARK
            axes.text(found, right, count or "", color=colour, ha="center", va="center", fontsize=7)
    axes.set(xlabel="taken for", ylabel="class")
    head(axes, title)
    return figure
