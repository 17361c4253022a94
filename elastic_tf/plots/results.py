"""What trainings reached and what they cost, from the rows that experiments write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from elastic_tf.plots.style import BLUE, DARK, VERMILLION, grid, head, picture, styles

Rows = Sequence[Mapping[str, Any]]
_WIDE = 3.0  # times the usual half-width of an interval


def accuracy_at_budgets(tables: Mapping[str, Rows], *, title: str = "") -> Figure:
    """Accuracy of each method with its 95 % interval: over seconds, and where all get as many.

    Args:
        tables: of a comparison: "equal_epochs" and, unless it was left out, "equal_seconds"; rows
            with "method", "epochs", "seconds", and "mean" and "half_width" of the accuracy in
            [0, 1] (None: one seed tells no interval).
        title: above the picture.
    """
    by_epochs, by_seconds = tables["equal_epochs"], tables.get("equal_seconds", ())
    every, methods = [*by_epochs, *by_seconds], [row["method"] for row in by_epochs]
    looks = styles(row["method"].partition("@")[0] for row in every)
    figure, panels = picture(9.0, 5.2, columns=2 if by_seconds else 1)
    left, *others = np.ravel(panels)
    shown: dict[str, Any] = {}
    for rows in (by_epochs, by_seconds):
        for place, row in enumerate(rows):
            name, _, rho = row["method"].partition("@")
            look, mean, half = looks[name], 100 * row["mean"], 100 * (row["half_width"] or 0.0)
            axes, at = (left, row["seconds"]) if rows is by_epochs else (others[0], place)
            point = axes.errorbar(
                at,
                mean,
                yerr=half or None,
                fmt=look.marker,
                color=look.colour,
                capsize=4,
                markersize=8,
                linewidth=1.6,
            )
            is_variant = [other.partition("@")[0] for other in methods].count(name) > 1
            said = f"{name} (number: rho)" if is_variant else row["method"]
            shown.setdefault(f"{said}: {look.trains}" if look.trains else said, point.lines[0])
            if is_variant and rows is by_epochs:
                offset = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
                axes.annotate(rho, (at, mean + half), (0, 4), **offset)
    left.set_xlim(0, 1.08 * max(row["seconds"] for row in by_epochs))
    left.set_ylim(*_limits(every))
    left.set_xlabel("training time (s)")
    left.set_ylabel("test accuracy (%): mean, 95 % interval")
    grid(left)
    epochs = "/".join(str(count) for count in sorted({row["epochs"] for row in by_epochs}))
    head(left, f"{epochs} epochs each")
    for right in others:
        names = [row["method"] for row in by_seconds]
        right.set_xticks(range(len(names)), names, rotation=45, ha="right")
        head(right, f"at most {max(row['seconds'] for row in by_seconds):.0f} s each")
        grid(right)
    figure.legend(
        shown.values(), shown, frameon=False, loc="outside lower left", ncols=2, fontsize=9
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
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
        said = ["not measured" if np.isnan(width) else f"{width:.4g}" for width in widths]
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


def _limits(rows: Rows) -> tuple[float, float]:
    """Ends of an axis of accuracies, in per cent; an interval that is much wider is cut off."""
    means = 100 * np.array([row["mean"] for row in rows])
    halves = 100 * np.array([row["half_width"] or 0.0 for row in rows])
    shown = np.minimum(halves, _WIDE * np.median(halves))
    low, high = float((means - shown).min()), float((means + shown).max())
    margin = 0.06 * (high - low) or 1.0
    return max(low - margin, 0.0), min(high + margin, 100.0)
