"""Where the memory of a training step goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

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
    "weight": GREY,
    "slots": PURPLE,
    "label": YELLOW,
    "activation": BLUE,
    "derivative": ORANGE,
    "gradient": GREEN,
    "copy": SKY,
}


def memory_map(tensors: Sequence[Any], live: np.ndarray, *, title: str = "") -> Figure:
    """Bytes in use over the ops of a step that allocate or free, by kind.

    Args:
        tensors: of `elastic_tf.memory.step`: kind, bytes, first and last op.
        live: bytes that are in use at each op.
        title: above the picture.
    """
    used = {kind: np.zeros(len(live)) for kind in _COLOURS if kind in {t.kind for t in tensors}}
    for one in tensors:
        used[one.kind][one.first : one.last + 1] += one.bytes / _MIB
    changes = np.flatnonzero(np.diff(live, prepend=-1))
    x, areas = range(len(changes)), [sizes[changes] for sizes in used.values()]
    figure, axes = picture(9.0, 4.6)
    axes.stackplot(x, *areas, labels=[*used], colors=[_COLOURS[kind] for kind in used])
    axes.plot(x, live[changes] / _MIB, color=BLACK, linewidth=1.0)
    axes.set(xlim=(0, len(changes) - 1), ylim=(0, 1.03 * live.max() / _MIB))
    axes.set(xlabel="op that allocates or frees", ylabel="in use (MiB)")
    figure.legend(frameon=False, loc="outside lower center", ncols=8, fontsize=8)
    lasting = sum(used[kind][0] for kind in ("weight", "slots") if kind in used)
    found = f"{live.max() / _MIB:.1f} MiB at the fullest op, of it weights and slots {lasting:.1f}"
    head(axes, said(title, found))
    return figure
