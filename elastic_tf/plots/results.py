"""What trainings reached and what they cost, from the rows that experiments write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from elastic_tf.plots.style import (
    BLUE,
    DARK,
    TRAINED,
    VERMILLION,
    Style,
    grid,
    head,
    picture,
    styles,
)

Rows = Sequence[Mapping[str, Any]]
_ACCURACY = "test accuracy (%): mean, 95 % interval"
_WIDE = 3.0  # times the usual half-width of an interval


def accuracy_and_cost(rows: Rows, *, title: str = "") -> Figure:
    """Accuracy of each method with its 95 % interval, over the seconds of its training.

    Args:
        rows: of a comparison: "method", "seconds", "mean" and "half_width" of the accuracy in
            [0, 1] (None: one seed tells no interval).
        title: above the picture.
    """
    figure, axes = picture(7.6, 4.2)
    looks = styles(row["method"] for row in rows)
    for row in rows:
        half = row["half_width"]
        spread = "" if half is None else f" ± {100 * half:.1f}"
        label = f"{row['method']}: {100 * row['mean']:.1f}{spread} %"
        _point(axes, row, row["seconds"], looks[row["method"]], _numbered(rows), label=label)
    _over_seconds(axes, rows, rows)
    figure.legend(
        title="method@rho: mean, 95 % interval",
        loc="outside right upper",
        frameon=False,
        alignment="left",
        fontsize=8,
        title_fontsize=8,
    )
    head(axes, title)
    return figure


def accuracy_at_budgets(tables: Mapping[str, Rows], *, title: str = "") -> Figure:
    """Accuracy of each method with its 95 % interval: over seconds, and where all get as many.

    Args:
        tables: "equal_epochs" and "equal_seconds" of a comparison: rows as for
            `accuracy_and_cost`, and "epochs".
        title: above the picture.
    """
    by_epochs, by_seconds = tables["equal_epochs"], tables["equal_seconds"]
    looks = styles(_bare(row["method"]) for row in [*by_epochs, *by_seconds])
    numbered = _numbered(by_epochs)
    figure, (left, right) = picture(9.0, 5.2, columns=2)
    shown: dict[str, Any] = {}
    for axes, rows in ((left, by_epochs), (right, by_seconds)):
        for place, row in enumerate(rows):
            name, at = _bare(row["method"]), row["seconds"] if axes is left else place
            point = _point(axes, row, at, looks[name], numbered if axes is left else set())
            said = f"{name} (number: rho)" if name in numbered else row["method"]
            shown.setdefault(f"{said}: {TRAINED[name]}" if name in TRAINED else said, point)
        grid(axes)
    _over_seconds(left, by_epochs, [*by_epochs, *by_seconds])
    epochs = "/".join(str(count) for count in sorted({row["epochs"] for row in by_epochs}))
    head(left, f"{epochs} epochs each")
    methods = [row["method"] for row in by_seconds]
    right.set_xticks(range(len(methods)), methods, rotation=45, ha="right")
    head(right, f"at most {max(row['seconds'] for row in by_seconds):.0f} s each")
    figure.legend(
        shown.values(), shown, frameon=False, loc="outside lower left", ncols=2, fontsize=9
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def accuracy_intervals(rows: Rows, *, title: str = "") -> Figure:
    """Accuracy of each method with its 95 % interval, where all cost the same.

    Args:
        rows: as for `accuracy_and_cost`, and "accuracies", one for each seed.
        title: above the picture.
    """
    figure, axes = picture(7.0, 1.3 + 0.36 * len(rows))
    looks = styles(row["method"] for row in rows)
    for place, row in enumerate(rows):
        look, mean, half = looks[row["method"]], 100 * row["mean"], row["half_width"]
        if half is not None:
            ends = [mean - 100 * half, mean + 100 * half]
            axes.plot(ends, [place, place], color=look.colour, linewidth=3)
        axes.scatter(mean, place, s=70, color=look.colour, marker=look.marker, zorder=3)
        seeds = 100 * np.array(row["accuracies"])
        axes.scatter(seeds, np.full(len(seeds), place), s=60, color=DARK, marker="|", zorder=4)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_xlim(*_limits(rows))
    axes.margins(y=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy (%): mean, 95 % interval, each seed")
    grid(axes, "x")
    head(axes, title)
    return figure


def method_panels(
    rows: Rows, panels: Mapping[str, tuple[str, float]], *, title: str = ""
) -> Figure:
    """Several costs of each method, a panel of bars for each.

    Args:
        rows: "method", and the keys of `panels`; None: not measured.
        panels: key -> (what it is, with its unit; what to divide by for that unit).
        title: above the picture.
    """
    names = [row["method"] for row in rows]
    looks = styles(names)
    width, height = 1.4 + 2.1 * len(panels), 1.2 + 0.34 * len(rows)
    figure, each = picture(width, height, columns=len(panels))
    for axes, (key, (label, unit)) in zip(np.ravel(each), panels.items()):
        widths = [np.nan if row[key] is None else row[key] / unit for row in rows]
        colours, hatches = zip(*((looks[name].colour, looks[name].hatch) for name in names))
        bars = axes.barh(names, np.nan_to_num(widths), color=colours, hatch=hatches)
        said = ["not measured" if np.isnan(width) else _short(width) for width in widths]
        axes.bar_label(bars, said, padding=2, fontsize=7)
        axes.margins(x=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.set_xlabel(label, fontsize=8)
        axes.tick_params(labelsize=8)
    np.ravel(each)[0].invert_yaxis()
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def deadlines(rows: Rows, *, title: str = "") -> Figure:
    """What trainings took of the time they were given.

    Args:
        rows: "asked" and "taken" in seconds, "load", and "left_out", the steps that were not made.
        title: above the picture.
    """
    figure, axes = picture(7.0, 1.3 + 0.42 * len(rows))
    taken = [100 * row["taken"] / row["asked"] for row in rows]
    places = np.arange(len(rows))
    colours = [BLUE if share <= 100 else VERMILLION for share in taken]
    bars = axes.barh(places, taken, color=colours, height=0.7)
    said = [
        f"{share:.1f} %" + (f", {row['left_out']} steps left out" if row["left_out"] else "")
        for share, row in zip(taken, rows)
    ]
    axes.bar_label(bars, said, label_type="center", color="white", fontsize=8)
    names = [f"{row['asked']:.0f} s, load: {row['load']}" for row in rows]
    axes.set_yticks(places, names, fontsize=8)
    axes.axvline(100, color=DARK, linewidth=1.2)
    axes.invert_yaxis()
    axes.set_xlabel("time taken / deadline (%)")
    head(axes, title)
    return figure


def _bare(method: str) -> str:
    """A method without its rho."""
    return method.partition("@")[0]


def _numbered(rows: Rows) -> set[str]:
    """Methods that are there several times: they share a look, and numbers tell them apart."""
    names = [_bare(row["method"]) for row in rows]
    return {name for name in names if names.count(name) > 1}


def _point(
    axes: Any,
    row: Mapping[str, Any],
    at: float,
    look: Style,
    numbered: set[str],
    **options: Any,
) -> Any:
    """A mean with its interval, and above it the rho of a variant; returns the marker."""
    half, mean = 100 * (row["half_width"] or 0.0), 100 * row["mean"]
    bars = axes.errorbar(
        at,
        mean,
        yerr=half or None,
        fmt=look.marker,
        color=look.colour,
        capsize=4,
        markersize=8,
        linewidth=1.6,
        **options,
    )
    name, _, rho = row["method"].partition("@")
    if name in numbered:
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
        place = {"textcoords": "offset points", "ha": "center", "fontsize": 9, "bbox": behind}
        axes.annotate(rho, (at, mean + half), (0, 4), **place)
    return bars.lines[0]


def _over_seconds(axes: Any, rows: Rows, beside: Rows) -> None:
    """Axes of accuracy over seconds; what is drawn `beside` has the same accuracies."""
    axes.set_xlim(0, 1.08 * max(row["seconds"] for row in rows))
    axes.set_ylim(*_limits(beside))
    axes.set_xlabel("training time (s)")
    axes.set_ylabel(_ACCURACY)
    grid(axes)


def _short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _limits(rows: Rows) -> tuple[float, float]:
    """Where an axis of accuracies begins and ends, in per cent.

    All means are within, and all intervals but those several times as wide as usual: they would
    leave no room for the others, and run out of the picture.
    """
    halves = [row["half_width"] or 0.0 for row in rows]
    usual = _WIDE * float(np.median(halves))
    ends = [
        row["mean"] + side * half
        for row, half in zip(rows, halves)
        for side in (-1, 1)
        if half <= usual
    ]
    ends += [row["mean"] for row in rows]
    low, high = 100 * min(ends), 100 * max(ends)
    margin = 0.06 * (high - low) or 1.0
    return max(low - margin, 0.0), min(high + margin, 100.0)
