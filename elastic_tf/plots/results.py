"""What trainings reached in which time, from the rows that comparisons write."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from elastic_tf.plots.style import frame, grid, head, picture, styles

Rows = Sequence[Mapping[str, Any]]


def accuracy_at_budgets(tables: Mapping[str, Rows], *, title: str = "") -> Figure:
    """Accuracy of each method with its 95 % interval: over seconds, and where all get as many.

    Args:
        tables: of a comparison: "equal_epochs" and, unless it was left out, "equal_seconds"; rows
            with "method", "epochs", "seconds", and "mean" and "half_width" of the accuracy in
            [0, 1] (None: one seed tells no interval).
        title: above the picture.
    """
    by_epochs, by_seconds = tables["equal_epochs"], tables.get("equal_seconds", ())
    methods = [row["method"].partition("@")[0] for row in by_epochs]
    looks = styles(row["method"].partition("@")[0] for row in (*by_epochs, *by_seconds))
    figure, panels = picture(9.0, 5.2, columns=2 if by_seconds else 1)
    left, *others = np.ravel(panels)
    shown: dict[str, Any] = {}
    for axes, rows in zip((left, *others), (by_epochs, by_seconds)):
        for place, row in enumerate(rows):
            name, _, rho = row["method"].partition("@")
            look, mean, half = looks[name], 100 * row["mean"], 100 * (row["half_width"] or 0.0)
            at = row["seconds"] if axes is left else place
            options = {"fmt": look.marker, "color": look.colour, "markersize": 8, "linewidth": 1.6}
            point = axes.errorbar(at, mean, yerr=half or None, capsize=4, **options)
            is_variant = methods.count(name) > 1
            said = f"{name} (number: rho)" if is_variant else row["method"]
            shown.setdefault(f"{said}: {look.trains}" if look.trains else said, point.lines[0])
            if is_variant and axes is left:
                offset = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
                axes.annotate(rho, (at, mean + half), (0, 4), **offset)
        grid(axes)
    rows = [*by_epochs, *by_seconds]
    frame(left, *([100 * (row[key] or 0.0) for row in rows] for key in ("mean", "half_width")))
    left.set_xlim(0, 1.08 * max(row["seconds"] for row in by_epochs))
    left.set(xlabel="training time (s)", ylabel="test accuracy (%): mean, 95 % interval")
    epochs = "/".join(str(count) for count in sorted({row["epochs"] for row in by_epochs}))
    head(left, f"{epochs} epochs each")
    for right in others:
        names = [re.sub(r"(_|@)", r"\n\1", row["method"]) for row in by_seconds]
        right.set_xticks(range(len(names)), names, fontsize=7)
        head(right, f"at most {max(row['seconds'] for row in by_seconds):.0f} s each")
    figure.legend(
        shown.values(), shown, frameon=False, loc="outside lower left", ncols=2, fontsize=9
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure
