"""Lines, bars and points: the forms that the other pictures are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.plots import inputs
from elastic_tf.plots.style import DARK, PALE, head, picture, styles


def accuracy_over_seconds(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str = ""
) -> Figure:
    """Accuracy reached after so many seconds of training.

    Args:
        curves: method -> (seconds of training so far, accuracy in [0, 1]) after each epoch.
        title: above the picture.
    """
    found = inputs.pairs("curves", curves, finite=False)
    percent: dict[str, tuple[Any, Any]] = {name: (x, 100 * y) for name, (x, y) in found.items()}
    return lines(percent, x="training time (s)", y="test accuracy (%)", title=title)


def lines(
    curves: Mapping[str, tuple[Sequence[float], Any]],
    *,
    x: str,
    y: str,
    title: str = "",
    is_log: bool = False,
    is_whole: bool = False,
) -> Figure:
    """Lines in one picture.

    Args:
        curves: label -> (values along x, values along y); methods have colours of their own.
        x: what stands along it, with its unit.
        y: likewise.
        title: above the picture.
        is_log: whether x is logarithmic.
        is_whole: whether x are whole numbers, as epochs are; otherwise x begins at 0.
    """
    inputs.captions(x=x, y=y, title=title)
    arguments.flag("is_log", is_log)
    arguments.flag("is_whole", is_whole)
    found = inputs.pairs("curves", curves, finite=False)
    if is_log and any((along <= 0).any() for along, _ in found.values()):
        raise ValueError(
            f"`curves` must be above 0 along a logarithmic x. Received: {brief(curves)}."
        )
    figure = picture(7.0, 4.2)
    axes = figure.add_subplot()
    looks = styles(found)
    for name, values in found.items():
        # markers on every point of a long line would hide it
        is_short = len(values[0]) <= 30
        axes.plot(
            *values,
            label=name,
            color=looks[name].colour,
            linestyle=looks[name].line,
            marker=looks[name].marker if is_short else "",
            markersize=4.5,
            linewidth=1.8,
        )
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if is_log:
        axes.set_xscale("log")
    elif is_whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        # the margin is of the whole axis, so that the last marker is not cut
        most = max((along.max() for along, _ in found.values()), default=0.0)
        axes.set_xlim(0, 1.05 * most if most > 0.0 else None)
    axes.grid(color=PALE)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    head(axes, title)
    return figure


def bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    y: str,
    title: str = "",
    notes: Mapping[str, Mapping[str, str]] | None = None,
) -> Figure:
    """Groups of bars.

    Args:
        groups: group -> label of a bar -> its height; a label has one colour in all groups.
        y: what stands along y, with its unit.
        title: above the picture.
        notes: what to write above a bar, like `groups`; None: the heights.
    """
    inputs.captions(y=y, title=title)
    for group in inputs.mapping("groups", groups).values():
        for height in inputs.mapping("groups", group).values():
            inputs.values("groups", [height])
    if notes is not None:
        for said in inputs.mapping("notes", notes).values():
            for note in inputs.mapping("notes", said).values():
                inputs.captions(notes=note)
    labels = list(dict.fromkeys(label for bars in groups.values() for label in bars))
    looks = styles(labels)
    figure = picture(max(5.0, 1.5 + 0.55 * sum(len(bars) + 1 for bars in groups.values())), 4.2)
    axes = figure.add_subplot()
    place, ticks = 0.0, []
    seen: set[str] = set()
    for group, heights in groups.items():
        ticks.append((place + (len(heights) - 1) / 2, group))
        for label, height in heights.items():
            shown = "" if label in seen else label  # once in the legend
            seen.add(label)
            look = looks[label]
            axes.bar(place, height, width=0.85, label=shown, color=look.colour, hatch=look.hatch)
            note = f"{height:.3g}" if notes is None else _note(notes, group, label)
            side = "top" if height < 0 else "bottom"
            axes.annotate(note, (place, height), ha="center", va=side, fontsize=7)
            place += 1
        place += 1
    axes.set_xticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylabel(y)
    axes.margins(y=0.12)
    figure.legend(frameon=False, loc="outside right upper", fontsize=8)
    head(axes, title)
    return figure


def agreement(
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    title: str = "",
    within: float | None = None,
    is_log: bool = False,
) -> Figure:
    """Points against the diagonal on which both values agree.

    Args:
        points: label -> (values along x, values along y), in one unit.
        x: what stands along it, with its unit.
        y: likewise.
        title: above the picture.
        within: half-width of a band around the diagonal, in that unit.
        is_log: whether both axes are logarithmic; all values are above 0 then.
    """
    inputs.captions(x=x, y=y, title=title)
    if within is not None:
        within = arguments.number("within", within, low=0.0, high=1e100)
    arguments.flag("is_log", is_log)
    drawn = inputs.pairs("points", points)
    if is_log and any((along <= 0).any() for pair in drawn.values() for along in pair):
        raise ValueError(
            f"`points` must be above 0 on logarithmic axes. Received: {brief(points)}."
        )
    figure = picture(5.4, 4.8)
    axes = figure.add_subplot()
    every = np.concatenate([np.ravel(part) for pair in drawn.values() for part in pair])
    if is_log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = np.array([every.min() / 1.5, every.max() * 1.5])
    else:
        margin = 0.05 * float(np.ptp(every)) or 0.05
        ends = np.array([every.min() - margin, every.max() + margin])
    if within is not None:
        axes.fill_between(
            ends, ends - within, ends + within, color=PALE, label=f"within {within:g}"
        )
    axes.plot(ends, ends, color=DARK, linewidth=1.0)
    for name, look in styles(drawn).items():
        axes.scatter(
            *drawn[name],
            s=26,
            label=name,
            color=look.colour,
            marker=look.marker,
            alpha=0.85,
            linewidths=0,
            zorder=2,
        )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=8)
    head(axes, title)
    return figure


def _note(notes: Mapping[str, Mapping[str, str]], group: str, label: str) -> str:
    """What is written above a bar."""
    if label not in notes.get(group, {}):
        raise ValueError(
            f"`notes` must be like `groups`. Received: {brief(notes)} without '{label}' of "
            f"'{group}'."
        )
    return notes[group][label]
