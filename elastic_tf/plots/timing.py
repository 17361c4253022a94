"""Where the time of a step goes: op by op, tensor by tensor, as a whole, from tensor to tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from elastic_tf.plots.charts import lines
from elastic_tf.plots.style import FORWARD, PALE, T_DW, T_DY, head, picture

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile

_MOST_NAMED = 24  # tensors whose names fit along an axis
_MS = 1e3  # microseconds in a millisecond
_PASSED = "#F3C9A8"  # T_DY, pale


def timing_bars(profile: TimingProfile, *, title: str = "") -> Figure:
    """t_dw and t_dy of each tensor in forward order."""
    figure, axes = picture(9.0, 3.8)
    place = np.arange(profile.count)
    dw, dy = profile.t_dw / _MS, profile.t_dy / _MS
    axes.bar(place, dw, width=1.0, color=T_DW, label="t_dw: weight gradient and update")
    axes.bar(place, dy, width=1.0, bottom=dw, color=T_DY, label="t_dy: passing the error on")
    axes.set_xlabel("tensor, forward order")
    axes.set_ylabel("time (ms per step)")
    axes.set_xlim(-0.5, profile.count - 0.5)
    if profile.tensors and profile.count <= _MOST_NAMED:
        names = [tensor.name for tensor in profile.tensors]
        axes.set_xticks(place, names, rotation=60, ha="right", fontsize=7)
    axes.legend(frameon=False)
    full, forward = profile.t_full / _MS, profile.t_forward / _MS
    head(axes, title or f"full step {full:.1f} ms, forward pass {forward:.1f} ms")
    return figure


def step_parts(profiles: Mapping[str, TimingProfile], *, title: str = "") -> Figure:
    """How a full step divides into forward pass, t_dw and t_dy, for several profiles.

    Args:
        profiles: label -> profile.
        title: above the picture.
    """
    figure, axes = picture(7.5, 1.4 + 0.5 * len(profiles))
    parts = {
        "forward pass": (FORWARD, [p.t_forward / p.t_full for p in profiles.values()]),
        "t_dw": (T_DW, [p.t_dw.sum() / p.t_full for p in profiles.values()]),
        "t_dy": (T_DY, [p.t_dy.sum() / p.t_full for p in profiles.values()]),
    }
    left = np.zeros(len(profiles))
    for label, (colour, shares) in parts.items():
        widths = 100 * np.array(shares)
        shown = axes.barh(list(profiles), widths, left=left, color=colour, label=label)
        axes.bar_label(shown, fmt="%.0f", label_type="center", fontsize=8)
        left += widths
    for place, profile in enumerate(profiles.values()):
        axes.annotate(f" {profile.t_full / _MS:.0f} ms", (100, place), va="center", fontsize=8)
    axes.set_xlim(0, 112)
    axes.invert_yaxis()
    axes.set_xlabel("share of the full step (%)")
    figure.legend(frameon=False, loc="outside lower center", ncols=3, fontsize=8)
    head(axes, title)
    return figure


def cost_of_depth(profiles: Mapping[str, TimingProfile], *, title: str = "") -> Figure:
    """Time of the step that trains all tensors from one on, over that tensor.

    Args:
        profiles: label -> profile; of one model, or the picture compares little.
        title: above the picture.
    """
    curves = {}
    for label, profile in profiles.items():
        later = np.cumsum((profile.t_dw + profile.t_dy)[::-1])[::-1]
        share = 100 * (profile.t_forward + later) / profile.t_full
        curves[label] = (range(profile.count), share)
    x = "first tensor that is trained (forward order; all after it are trained too)"
    figure = lines(curves, x=x, y="share of the full step (%)", title=title, is_whole=True)
    figure.axes[0].set_ylim(0, 103)
    return figure


def dependency_map(
    ops: Sequence[tuple[str, Sequence[int]]], *, names: Sequence[str], title: str = ""
) -> Figure:
    """Which tensors need which ops of the backward pass, and whose time an op is.

    The time of an op that one tensor needs is that tensor's t_dw; of one that several need, t_dy of
    the last of them.

    Args:
        ops: (name, indices of the tensors that need it), a row each.
        names: of the tensors, forward order.
        title: above the picture.
    """
    cells = np.zeros((len(ops), len(names)))
    for row, (_, tensors) in zip(cells, ops):
        row[list(tensors)] = 1
        row[max(tensors)] = 2 if len(tensors) > 1 else 3
    figure, axes = picture(2.2 + 0.55 * len(names), 1.9 + 0.28 * len(ops))
    colours = [PALE, _PASSED, T_DY, T_DW]
    axes.imshow(cells, aspect="auto", cmap=ListedColormap(colours), vmin=0, vmax=3)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(ops)), [name for name, _ in ops], fontsize=8)
    axes.set_xticks(np.arange(len(names) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(ops) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("tensor, forward order")
    axes.set_ylabel("op of the backward pass")
    said = {"its t_dw": T_DW, "its t_dy": T_DY, "needs the op too": _PASSED}
    patches = [Patch(color=colour, label=label) for label, colour in said.items()]
    figure.legend(handles=patches, frameon=False, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure
