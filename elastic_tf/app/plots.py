"""Pictures, drawn without a display, in colours that the colour-blind tell apart.

Blues are elastic and orange is full training in every picture. Every function returns a figure,
which a notebook shows as it is; `save` writes one.
"""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf.arguments import extra
from elastic_tf.plan import EXACT, FROZEN, NAMES, Plan, as_plan

with extra("plots"):
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
    from PIL import Image

if TYPE_CHECKING:
    from elastic_tf.memory.steps import StepMemory
    from elastic_tf.timing.profile import TimingProfile

Curves = Mapping[str, tuple[Any, ...]]
Groups = Mapping[str, Mapping[str, float]]
Tables = Mapping[str, Sequence[Mapping[str, Any]]]  # of rows that comparisons write

# Okabe & Ito, Color Universal Design, 2008.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILLION, SKY, YELLOW = "#D55E00", "#56B4E9", "#F0E442"
BLACK, DARK, GREY, PALE = "#000000", "#767676", "#B8B8B8", "#EDEDED"

# By how a label begins: blues are elastic, orange is full training, the rest is anything else.
_HUES = {
    "elastic": (BLUE, SKY, "#003A5C"),
    "full": (ORANGE, YELLOW),
    "plain": (ORANGE, YELLOW),
    "": (GREEN, PURPLE, VERMILLION, BLACK, DARK),
}
_MODES = (PALE, BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY)  # frozen, exact, others by code
_KINDS = ("weight", "slots", "label", "activation", "derivative", "gradient", "copy")
_KIND_COLOURS = dict(zip(_KINDS, (GREY, PURPLE, YELLOW, BLUE, ORANGE, GREEN, SKY)))
_MIB = 2**20
_MOST_TICKS = 12  # with names along an axis
_MOST_MARKERS = 30  # on every point of a longer line they would hide it
_MOST_CLASSES = 40  # that are named
_ACROSS = 10  # images in a row


class Picture(Figure):
    """A figure that a notebook shows as it is."""

    def _repr_png_(self) -> bytes:
        return png(self)


def lines(
    curves: Curves, *, x: str, y: str, title: str = "", is_log: bool = False, is_whole: bool = False
) -> Figure:
    """Lines of label -> (values along x, values along y).

    A third part is half the height of a bar at each point, not a number where there is none. `x`
    and `y` say what stands along them, with the unit. x is logarithmic, or whole numbers, as epochs
    are, or begins at 0.
    """
    figure, axes = _picture(7.0, 4.2, x, y, title)
    for label, (colour, marker) in _looks(curves).items():
        style = f"{marker}-" if len(curves[label][0]) <= _MOST_MARKERS else "-"
        axes.errorbar(*curves[label], fmt=style, color=colour, label=label, ms=4.5, capsize=3)
    if is_log:
        axes.set_xscale("log")
    elif is_whole:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    else:
        axes.set_xlim(left=0)
    axes.grid(color=PALE)
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def accuracy_at_budgets(tables: Tables, *, title: str = "") -> Figure:
    """Accuracy of each method over its seconds, with its 95 % interval.

    `tables` are "equal_epochs", "equal_seconds" or both, of rows with "method", "seconds", and
    "mean" and "half_width" of the accuracy in [0, 1] (None: one seed has no interval). A method's
    line joins its rows.
    """
    points: dict[str, set[tuple[float, float, float]]] = {}
    for row in (row for rows in tables.values() for row in rows):
        half = np.nan if row["half_width"] is None else 100.0 * row["half_width"]
        points.setdefault(row["method"], set()).add((row["seconds"], 100.0 * row["mean"], half))
    curves = {method: tuple(np.array(sorted(found)).T) for method, found in points.items()}
    y = "test accuracy (%), bars: 95 % interval"
    return lines(curves, x="training time (s)", y=y, title=title)


def bars(
    groups: Groups, *, y: str, title: str = "", notes: Mapping[str, Mapping[str, str]] | None = None
) -> Figure:
    """Groups of bars: group -> label -> height; a label has one colour in all groups.

    `notes`, of the same form, stand above the bars in the place of the heights.
    """
    widths = [len(heights) + 1 for heights in groups.values()]  # with a gap
    starts = dict(zip(groups, np.cumsum([0, *widths])))
    figure, axes = _picture(max(5.0, 1.5 + 0.55 * sum(widths)), 4.2, "", y, title)
    every = (label for heights in groups.values() for label in heights)
    for label, (colour, _) in _looks(every).items():
        has = [name for name, heights in groups.items() if label in heights]
        places = [starts[name] + [*groups[name]].index(label) for name in has]
        heights = [groups[name][label] for name in has]
        drawn = axes.bar(places, heights, 0.85, label=label, color=colour)
        said = [f"{one:,.0f}" if abs(one) >= 100 else f"{one:.3g}" for one in heights]
        if notes is not None:
            said = [notes[name][label] for name in has]
        axes.bar_label(drawn, said, fontsize=7)
    middles = [starts[name] + (width - 2) / 2 for name, width in zip(groups, widths)]
    axes.set_xticks(middles, list(groups))
    axes.margins(y=0.12)
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=8)
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
    figure, axes = _picture(5.4, 4.8, x, y, title)
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
    for label, (colour, marker) in _looks(points).items():
        axes.plot(*points[label], marker, color=colour, label=label, markersize=5)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    axes.legend(frameon=False, fontsize=8)
    return figure


def confusion(counts: np.ndarray, names: Sequence[str], *, title: str = "") -> Figure:
    """Images of a class (down) that were taken for one (across); shape (C, C)."""
    side = min(3.0 + 0.2 * len(names), 8.0)
    figure, axes = _picture(side, side, "taken for", "class", title)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    shown = _few(len(names), _MOST_CLASSES)
    told = [names[k][:24] for k in shown]
    axes.set_xticks(shown, told, rotation=90, fontsize=7)
    axes.set_yticks(shown, told, fontsize=7)
    if len(names) <= _MOST_CLASSES:
        for (right, found), count in np.ndenumerate(counts):
            colour = "white" if shares[right, found] > 0.5 else DARK
            axes.text(found, right, count or "", color=colour, ha="center", va="center", fontsize=7)
    return figure


def selection_map(
    masks: Sequence[np.ndarray | Plan],
    *,
    names: Sequence[str] = (),
    title: str = "",
    x: str = "epoch",
    ticks: Sequence[Any] = (),
) -> Figure:
    """Which tensors were trained in which epochs (Figure 21 of the paper), and in which mode.

    `masks` has a plan, or a bool mask of shape (N,), forward order, for each epoch, or for each of
    what `x` says, with `ticks` below them. A few of the tensors' `names` are written along the
    axis.
    """
    modes = np.array([as_plan(one, len(one)).modes for one in masks]).T  # (N, epochs)
    codes = [FROZEN, EXACT, *sorted({*modes.ravel().tolist()} - {FROZEN, EXACT})]
    colours = [_MODES[k % len(_MODES)] for k in range(len(codes))]
    options = {"cmap": ListedColormap(colours), "vmin": 0, "vmax": len(codes) - 1}
    figure, axes = _map(np.searchsorted(codes, modes), names, title, x, **options)
    if len(codes) > 2:
        patches = [Patch(color=c, label=NAMES[code]) for c, code in zip(colours, codes)]
        figure.legend(handles=patches, frameon=False, loc="outside lower center", ncols=4)
    if len(ticks):
        at = _few(len(ticks))
        axes.set_xticks(at + 1, [str(ticks[k]) for k in at])
    return figure


def importance_map(
    worths: Sequence[np.ndarray], *, names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Importance of each tensor over the epochs, as its share of that epoch's importance.

    `worths` has an array of shape (N,) for each epoch. Grey: training the tensor is expected to do
    harm.
    """
    gains = np.maximum(np.asarray(worths, float), 0.0)
    shares = (gains / np.maximum(gains.sum(axis=1, keepdims=True), np.finfo(float).tiny)).T
    colours = colormaps["cividis"].with_extremes(bad=GREY)
    scale = LogNorm(1e-4, 1.0, clip=True)
    values = np.where(shares > 0.0, shares, np.nan)  # NaN is drawn grey
    figure, axes = _map(values, names, title, "epoch", cmap=colours, norm=scale)
    label = "share of the epoch's importance (grey: harm)"
    figure.colorbar(axes.images[0], label=label, location="bottom")
    return figure


def _map(
    values: np.ndarray, names: Sequence[str], title: str, x: str, **options: Any
) -> tuple[Figure, Any]:
    """Tensors down, epochs across, values of shape (N, epochs)."""
    count, epochs = values.shape
    size = min(5.5 + 0.25 * epochs, 12.0), min(2.2 + 0.05 * count, 8.0)
    figure, axes = _picture(*size, x, "tensor, input side at the top", title)
    extent = (0.5, epochs + 0.5, count - 0.5, -0.5)
    axes.imshow(values, aspect="auto", interpolation="nearest", extent=extent, **options)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    ticks = _few(count)
    axes.set_yticks(ticks, [names[k] if len(names) else k for k in ticks], fontsize=8)
    return figure, axes


def image_grid(images: np.ndarray, labels: Sequence[str], *, title: str = "") -> Figure:
    """Images, values 0 to 255, shape (count, height, width, 1 or 3), each above its label."""
    rows, columns = -(-len(labels) // _ACROSS), min(len(labels), _ACROSS)
    told = [textwrap.fill(label.replace("_", " "), 14) for label in labels]
    size = 0.85 * columns, (1.1 + 0.15 * max(one.count("\n") for one in told)) * rows + 0.4
    figure = Picture(figsize=size, layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places:
        axes.set(xticks=[], yticks=[], frame_on=False)
    for axes, image, label in zip(places, images, told):
        shown = np.clip(image, 0, 255).astype(np.uint8).squeeze()
        axes.imshow(shown, cmap="gray", vmin=0, vmax=255)
        axes.set_xlabel(label, fontsize=8)
    figure.suptitle(title, wrap=True)
    return figure


def timing_bars(profile: TimingProfile, *, title: str = "") -> Figure:
    """t_dw and t_dy of each tensor in forward order, the input side at the top."""
    figure, axes = _picture(7.0, 4.6, "time (ms per step)", "tensor, input side at the top", title)
    place = np.arange(profile.count)
    dw, dy = profile.t_dw / 1e3, profile.t_dy / 1e3
    axes.barh(place, dw, 1.0, color=GREEN, label="t_dw: weight gradient and update")
    axes.barh(place, dy, 1.0, left=dw, color=VERMILLION, label="t_dy: passing the error on")
    axes.set_ylim(profile.count - 0.5, -0.5)
    if profile.tensors:
        ticks = _few(profile.count)
        axes.set_yticks(ticks, [profile.tensors[k].name for k in ticks], fontsize=8)
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


def cost_of_depth(profiles: Mapping[str, TimingProfile], *, title: str = "") -> Figure:
    """Time of the step that trains all tensors from one on, over that tensor; label -> profile."""
    curves = {}
    for label, profile in profiles.items():
        later = np.cumsum((profile.t_dw + profile.t_dy)[::-1])[::-1]
        share = 100 * (profile.t_forward + later) / profile.t_full
        curves[label] = (range(profile.count), share)
    x = "first tensor that is trained (forward order; all after it are trained too)"
    y = "share of the full step (%)"
    figure = lines(curves, x=x, y=y, title=title, is_whole=True)
    figure.axes[0].set_ylim(0, 103)
    return figure


def memory_map(step: StepMemory, *, title: str = "") -> Figure:
    """Bytes in use over the ops of a step of `et.memory.step` that allocate or free, by kind."""
    there = {one.kind for one in step.tensors}
    used = {kind: np.zeros(len(step.live)) for kind in _KIND_COLOURS if kind in there}
    for one in step.tensors:
        used[one.kind][one.first : one.last + 1] += one.bytes / _MIB
    changes = np.flatnonzero(np.diff(step.live, prepend=-1))
    x, areas = range(len(changes)), [sizes[changes] for sizes in used.values()]
    figure, axes = _picture(9.0, 4.6, "op that allocates or frees", "in use (MiB)", title)
    axes.stackplot(x, *areas, labels=[*used], colors=[_KIND_COLOURS[kind] for kind in used])
    axes.plot(x, step.live[changes] / _MIB, color=BLACK, linewidth=1.0)
    axes.set(xlim=(0, len(changes) - 1), ylim=(0, 1.03 * step.live.max() / _MIB))
    figure.legend(frameon=False, loc="outside lower center", ncols=8, fontsize=8)
    return figure


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture; the file's ending says which kind."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def png(figure: Figure) -> bytes:
    """A picture as the bytes of a PNG file, of a size for screens."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    # a palette is enough for what is drawn here, and takes a third of the bytes
    Image.open(drawn).convert("RGB").quantize().save(packed, "PNG", optimize=True)
    return packed.getvalue()


def _looks(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each label: "elastic@0.5", "full", and what else there is."""
    hues = {name: itertools.cycle(colours) for name, colours in _HUES.items()}
    looks = {}
    for label, marker in zip(dict.fromkeys(labels), itertools.cycle("osD^vPX*")):
        name = next(name for name in hues if label.lower().startswith(name))
        looks[label] = next(hues[name]), marker
    return looks


def _picture(width: float, height: float, x: str, y: str, title: str) -> tuple[Picture, Any]:
    """A figure of so many inches, and its axes, with what stands along them and above."""
    figure = Picture(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, axisbelow=True)
    axes.set_title(title, loc="left", fontsize=11, wrap=True)
    return figure, axes


def _few(count: int, most: int = _MOST_TICKS) -> np.ndarray:
    """Places of a few of `count`, from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
