"""Where the time and the memory of a step go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from elastic_tf.plots import style
from elastic_tf.plots.charts import lines
from elastic_tf.plots.style import few, head, picture

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile

_MOST_NAMED = 24  # tensors whose names fit along an axis
_MS = 1e3  # microseconds in a millisecond
FORWARD, T_DW, T_DY = style.GREY, style.GREEN, style.VERMILLION
_MIB = 2**20
_COLOURS = {
    "weight": style.GREY,
    "slots": style.PURPLE,
    "label": style.YELLOW,
    "activation": style.BLUE,
    "derivative": style.ORANGE,
    "gradient": style.GREEN,
    "copy": style.SKY,
}


def timing_bars(profile: TimingProfile, *, title: str = "") -> Figure:
    """t_dw and t_dy of each tensor in forward order, the input side at the top."""
    named = profile.count if profile.tensors and profile.count <= _MOST_NAMED else 0
    figure, axes = picture(7.0, max(4.6, 1.6 + 0.2 * named))
    place = np.arange(profile.count)
    dw, dy = profile.t_dw / _MS, profile.t_dy / _MS
    axes.barh(place, dw, height=1.0, color=T_DW, label="t_dw: weight gradient and update")
    axes.barh(place, dy, height=1.0, left=dw, color=T_DY, label="t_dy: passing the error on")
    axes.set(ylabel="tensor, input side at the top", xlabel="time (ms per step)")
    axes.set_ylim(profile.count - 0.5, -0.5)
    if profile.tensors:
        shown = place if named else few(profile.count)
        axes.set_yticks(shown, [profile.tensors[k].name for k in shown], fontsize=8)
    axes.legend(frameon=False)
    head(axes, title)
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


def memory_map(tensors: Sequence[Any], live: np.ndarray, *, title: str = "") -> Figure:
    """Bytes in use over the ops of a step that allocate or free, by kind.

    `tensors` are those of `elastic_tf.memory.step`, `live` the bytes in use at each op.
    """
    used = {kind: np.zeros(len(live)) for kind in _COLOURS if kind in {t.kind for t in tensors}}
    for one in tensors:
        used[one.kind][one.first : one.last + 1] += one.bytes / _MIB
    changes = np.flatnonzero(np.diff(live, prepend=-1))
    x, areas = range(len(changes)), [sizes[changes] for sizes in used.values()]
    figure, axes = picture(9.0, 4.6)
    axes.stackplot(x, *areas, labels=[*used], colors=[_COLOURS[kind] for kind in used])
    axes.plot(x, live[changes] / _MIB, color=style.BLACK, linewidth=1.0)
    axes.set(xlim=(0, len(changes) - 1), ylim=(0, 1.03 * live.max() / _MIB))
    axes.set(xlabel="op that allocates or frees", ylabel="in use (MiB)")
    figure.legend(frameon=False, loc="outside lower center", ncols=8, fontsize=8)
    head(axes, title)
    return figure
