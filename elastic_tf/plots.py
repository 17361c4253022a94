"""Pictures: drawn without a display, colour-blind safe, labelled with units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from elastic_tf.timing import TimingProfile

# Okabe & Ito, Color Universal Design, 2008.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
_MARKERS = "osD^vPX"
_GREY = "#EDEDED"


def accuracy_over_seconds(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str = ""
) -> Figure:
    """Accuracy reached after so many seconds of training.

    Args:
        curves: method -> (seconds of training so far, accuracy in [0, 1]) after each epoch.
        title: above the picture.
    """
    percent = {name: (x, 100 * np.asarray(y)) for name, (x, y) in curves.items()}
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
        curves: label -> (values along x, values along y).
        x: what stands along it, with its unit.
        y: likewise.
        title: above the picture.
        is_log: whether x is logarithmic.
        is_whole: whether x are whole numbers, as epochs are; otherwise x begins at 0.
    """
    figure = _figure(7.0, 4.2)
    axes = figure.add_subplot()
    for index, (name, values) in enumerate(curves.items()):
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            # a second round of colours is told apart by its lines
            "linestyle": ("-", "--", ":")[index // len(COLOURS) % 3],
            "markersize": 4.5,
            "linewidth": 1.8,
        }
        axes.plot(*values, label=name, **style)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if is_log:
        axes.set_xscale("log")
    elif is_whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xlim(left=0)
    axes.grid(color=_GREY)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    axes.set_title(title, loc="left")
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
    labels = list(dict.fromkeys(label for bars in groups.values() for label in bars))
    figure = _figure(max(5.0, 1.5 + 0.55 * sum(len(bars) + 1 for bars in groups.values())), 4.2)
    axes = figure.add_subplot()
    place, ticks = 0.0, []
    seen: set[str] = set()
    for group, heights in groups.items():
        ticks.append((place + (len(heights) - 1) / 2, group))
        for label, height in heights.items():
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            hatch = "" if labels.index(label) < len(COLOURS) else "//"
            shown = "" if label in seen else label  # once in the legend
            seen.add(label)
            axes.bar(place, height, width=0.85, color=colour, hatch=hatch, label=shown)
            note = f"{height:.3g}" if notes is None else notes[group][label]
            axes.annotate(note, (place, height), ha="center", va="bottom", fontsize=7)
            place += 1
        place += 1
    axes.set_xticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylabel(y)
    axes.margins(y=0.12)
    figure.legend(frameon=False, loc="outside right upper", fontsize=8)
    axes.set_title(title, loc="left")
    return figure


def selection_map(
    masks: Sequence[np.ndarray], *, names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Which tensors were trained in which epochs (Figure 21 of the paper).

    Args:
        masks: one mask for each epoch; bool, shape (N,), forward order.
        names: of the tensors; a few are written along the axis.
        title: above the picture.
    """
    chosen = np.array(masks, bool).T  # (N, epochs)
    count, epochs = chosen.shape
    figure = _figure(max(5.0, 2.5 + 0.25 * epochs), min(8.0, 2.2 + 0.05 * count))
    axes = figure.add_subplot()
    axes.imshow(
        chosen,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap([_GREY, COLOURS[0]]),
        vmin=0,
        vmax=1,
        extent=(0.5, epochs + 0.5, count - 0.5, -0.5),
    )
    axes.set_xlabel("epoch")
    axes.set_ylabel("tensor, input side at the top")
    axes.set_xticks(np.unique(np.linspace(1, epochs, min(epochs, 12)).round().astype(int)))
    ticks = np.unique(np.linspace(0, count - 1, min(count, 12)).round().astype(int))
    axes.set_yticks(ticks)
    if names:
        axes.set_yticklabels([names[k] for k in ticks], fontsize=7)
    share = chosen.mean()
    axes.set_title(title or f"trained (blue): {share:.0%} of tensors x epochs", loc="left")
    return figure


def timing_bars(profile: TimingProfile, *, title: str = "") -> Figure:
    """t_dw and t_dy of each tensor in forward order."""
    figure = _figure(9.0, 3.8)
    axes = figure.add_subplot()
    place = np.arange(profile.count)
    dw, dy = profile.t_dw / 1e3, profile.t_dy / 1e3
    axes.bar(place, dw, width=1.0, color=COLOURS[0], label="t_dw: weight gradient and update")
    axes.bar(place, dy, width=1.0, bottom=dw, color=COLOURS[1], label="t_dy: passing the error on")
    axes.set_xlabel("tensor, forward order")
    axes.set_ylabel("time (ms per step)")
    axes.set_xlim(-0.5, profile.count - 0.5)
    axes.legend(frameon=False)
    full, forward = profile.t_full / 1e3, profile.t_forward / 1e3
    said = f"full step {full:.1f} ms, forward pass {forward:.1f} ms"
    axes.set_title(title or said, loc="left")
    return figure


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture; the file's ending says which kind."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def pixels(figure: Figure) -> np.ndarray:
    """A picture as uint8, shape (height, width, 4)."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.array(canvas.buffer_rgba())  # type: ignore[no-untyped-call]


def _figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, without borders that say nothing."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
