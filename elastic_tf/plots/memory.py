"""Where the memory of a training step goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from elastic_tf.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    head,
    picture,
    said,
)

_MIB = 2**20
_COLOURS = {
    "activation": BLUE,
    "kept": SKY,
    "derivative": ORANGE,
    "gradient": GREEN,
    "weight": GREY,
    "slots": PURPLE,
    "label": YELLOW,
}


def memory_map(buffers: Sequence[Any], live: np.ndarray, *, title: str = "") -> Figure:
    """Offsets over execution orders: a rectangle for each buffer, a line for what is in use.

    Args:
        buffers: of a memory plan: kind, bytes, offset and execution orders.
        live: bytes that are in use at each execution order.
        title: above the picture.
    """
    figure, axes = picture(9.0, 4.6)
    for kind, colour in _COLOURS.items():
        places = [
            Rectangle(
                (one.orders[0] - 0.5, one.offset / _MIB),
                one.orders[-1] - one.orders[0] + 1,
                one.bytes / _MIB,
            )
            for one in buffers
            if one.kind == kind
        ]
        axes.add_collection(
            PatchCollection(places, facecolor=colour, edgecolor="white", linewidth=0.15)
        )
    axes.step(range(len(live)), live / _MIB, where="mid", color=BLACK, linewidth=1.2)
    peak = max(one.offset + one.bytes for one in buffers)
    axes.set(xlim=(-0.5, len(live) - 0.5), ylim=(0, 1.03 * peak / _MIB))
    axes.set(xlabel="execution order", ylabel="offset (MiB)")
    used = {one.kind for one in buffers}
    shown: list[Any] = [Patch(color=c, label=kind) for kind, c in _COLOURS.items() if kind in used]
    shown.append(axes.plot([], [], color=BLACK, label="in use")[0])
    figure.legend(handles=shown, frameon=False, loc="outside lower center", ncols=8, fontsize=8)
    least = live.max()
    found = f"peak {peak / _MIB:.1f} MiB, {peak / least - 1:.0%} above the lower bound"
    head(axes, said(title, found))
    return figure
