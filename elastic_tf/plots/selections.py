"""What tensors are worth, which are trained, and the images that it is about."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from elastic_tf.plan import EXACT, FROZEN, NAMES, Plan, as_plan
from elastic_tf.plots.style import GREY, MODES, PALE, few, head, picture

_LEAST_SHARE = 1e-4  # of an epoch's importance: what is below has the darkest colour
_WIDEST = 12.0  # inches
_ACROSS, _BROAD = 10, 14  # images in a row; letters below one


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
    colours = [PALE, *(MODES[k % len(MODES)] for k in range(len(codes) - 1))]
    shown = np.searchsorted(codes, modes)
    last = len(codes) - 1
    options = {"cmap": ListedColormap(colours), "vmin": 0, "vmax": last}
    figure = _map(shown, names, title, **options)
    figure.axes[0].set_xlabel(x)
    if last > 1:
        patches = [Patch(color=c, label=NAMES[code]) for c, code in zip(colours, codes)]
        beside = min(len(codes), 4)
        figure.legend(
            handles=patches, frameon=False, loc="outside lower center", ncols=beside, fontsize=8
        )
    if len(ticks):
        at = few(len(ticks))
        figure.axes[0].set_xticks(at + 1, [str(ticks[k]) for k in at])
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
    values = np.where(shares > 0.0, shares, np.nan)  # NaN is drawn grey
    colours = colormaps["cividis"].with_extremes(bad=GREY)
    scale = LogNorm(_LEAST_SHARE, 1.0, clip=True)
    figure = _map(values, names, title, cmap=colours, norm=scale)
    label = "share of the epoch's importance (grey: harm)"
    figure.colorbar(figure.axes[0].images[0], label=label, location="bottom")
    return figure


def image_grid(images: np.ndarray, labels: Sequence[str], *, title: str = "") -> Figure:
    """Images, values 0 to 255, shape (count, height, width, 1 or 3), each above its label."""
    rows, columns = -(-len(labels) // _ACROSS), min(len(labels), _ACROSS)
    told = [
        "\n".join(textwrap.fill(line, _BROAD) for line in label.replace("_", " ").split("\n"))
        for label in labels
    ]
    below = 0.15 * max(one.count("\n") for one in told)
    figure, each = picture(0.85 * columns, (1.1 + below) * rows + 0.4, rows, columns)
    for axes in np.ravel(each):
        axes.set(xticks=[], yticks=[], frame_on=False)
    for axes, image, label in zip(np.ravel(each), images, told):
        shown = np.clip(image, 0, 255).astype(np.uint8).squeeze()
        axes.imshow(shown, cmap="gray", vmin=0, vmax=255)
        axes.set_xlabel(label, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _map(values: np.ndarray, names: Sequence[str], title: str, **options: Any) -> Figure:
    """Tensors down, epochs across, values of shape (N, epochs)."""
    count, epochs = values.shape
    wide = min(5.5 + 0.25 * epochs, _WIDEST)
    figure, axes = picture(wide, min(8.0, 2.2 + 0.05 * count))
    extent = (0.5, epochs + 0.5, count - 0.5, -0.5)
    axes.imshow(values, aspect="auto", interpolation="nearest", extent=extent, **options)
    axes.set(xlabel="epoch", ylabel="tensor, input side at the top")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    ticks = few(count)
    axes.set_yticks(ticks, [names[k] if len(names) else k for k in ticks], fontsize=8)
    head(axes, title)
    return figure
