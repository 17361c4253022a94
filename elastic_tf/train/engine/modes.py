"""The modes that tensors can be trained in beside exact and frozen, by their code in a plan.

In: a model, its tensors and a plan. Out: contexts in which the layers of the plan's kernels get
other gradients, approximate ones or those of some channels, while one step is traced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.plan import CHANNELS, EXACT, FILTERED, NAMES, SOME, Plan, code_of
from elastic_tf.train.engine import gradients
from elastic_tf.train.engine.operations import Use as Use
from elastic_tf.train.engine.operations import held
from elastic_tf.train.engine.operations import in_one_op as in_one_op
from elastic_tf.train.engine.operations import kernel_of as kernel_of
from elastic_tf.train.engine.operations import recorded as recorded
from elastic_tf.train.engine.operations import replaced as replaced
from elastic_tf.train.optimizers.apply import Slice


@dataclass(frozen=True)
class Mode:
    """A way to train a kernel.

    Attributes:
        name: as plans and tables say it.
        code: as plans hold it; your own are from 100 to 127.
        kernel: the variable of a layer that can have it; None where the layer has none.
        context: changes a layer, built and with such a kernel, while one step is traced; where
            `axis` is given, called with the layer and the `Slice` of its trained channels.
        what: the kernels that can have it, for the message that refuses others.
        keeps: share of the weight gradient's operations that is left; None where it depends on
            sizes.
        axis: of a layer's kernel, the axis of its channels, of which the share `keeps` is trained,
            or as many as a plan says where that is None; without an axis all are.
    """

    name: str
    code: int
    kernel: Callable[[Any], tf.Variable | None]
    context: Callable[..., AbstractContextManager[Any]]
    what: str = "kernels of layers that the mode knows"
    keeps: float | None = None
    axis: Callable[[Any], int] | None = None

    def channels(self, layer: Any) -> tuple[int, int]:
        """How many channels of a layer's kernel are trained, and of how many."""
        kernel: Any = self.kernel(layer)
        most = kernel.shape[-1 if self.axis is None else self.axis(layer)]
        return max(int(most * (self.keeps or 1.0)), 1), most


class _Use(NamedTuple):
    """A kernel in a mode: its index, its layer, and its trained channels where not all are."""

    k: int
    mode: Mode
    layer: Any
    parts: tuple[Slice, ...]  # one or none


#: Every mode that a plan can hold beside frozen and exact, by its code.
MODES: dict[int, Mode] = {}


def register(mode: Mode) -> None:
    """Let plans hold a mode; a `ValueError` where its name or code is that of another one."""
    arguments.count("code", mode.code, most=127, hint="Use one from 100 on.")
    others = [name for code, name in NAMES.items() if code != mode.code]
    is_ours = mode.code == EXACT or (mode.code in MODES and mode.code < 100)
    if is_ours or NAMES.get(mode.code, mode.name) != mode.name or mode.name in others:
        raise ValueError(
            f"A mode must have a name and a code of its own. Received: '{mode.name}' with code "
            f"{mode.code}. Taken are {', '.join(f'{c} ({n})' for c, n in NAMES.items())}."
        )
    if mode.axis is not None:
        CHANNELS.add(mode.code)
    NAMES[mode.code] = mode.name
    MODES[mode.code] = mode


def slices(model: Any, plan: Plan) -> list[tuple[Slice, tuple[int, ...]]]:
    """The slices of kernels, and their channels; a ValueError if a tensor cannot have its mode."""
    uses = _uses(model, plan)
    return [(use.parts[0], tuple(plan.channels[use.k])) for use in uses if use.parts]


def choose(model: Any, plan: Plan) -> None:
    """Train the channels of a plan from the next step on; refuses a plan as `slices`."""
    for found, channels in slices(model, plan):
        found.choose(channels)


def kernels(model: Any, name: str) -> np.ndarray:
    """True for the kernels that can be trained in the mode of that name; bool, shape (N,)."""
    return np.isin(np.arange(len(model.tensors)), [*_able(model, name)])


def channel_axes(model: Any, name: str) -> dict[int, int]:
    """The axis of the channels of each kernel that can be trained by some of them, by its index."""
    axis = MODES[code_of(name)].axis
    return {} if axis is None else {k: axis(layer) for k, layer in _able(model, name).items()}


@contextlib.contextmanager
def installed(model: Any, plan: Plan) -> Iterator[None]:
    """Trace the layers of a model as the modes of a plan change them."""
    uses = _uses(model, plan)

    def change(stack: contextlib.ExitStack) -> None:
        for use in uses:
            stack.enter_context(use.mode.context(use.layer, *use.parts))

    with held((plan, id(model)), change):
        yield


def watched(model: Any, plan: Plan, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """What gradients are taken for to train some of the tensors: slices in the place of kernels."""
    uses = _uses(model, plan)
    parts = {id(model.tensors[use.k]): use.parts[0].variable for use in uses if use.parts}
    return [parts.get(id(variable), variable) for variable in variables]


def _uses(model: Any, plan: Plan) -> list[_Use]:
    """The kernels that a plan trains in other modes; refuses those that cannot have theirs."""
    layers = {code: _layers(model, code) for code in {*plan.modes.tolist()} & MODES.keys()}
    found = []
    # without layers the order of the tensors, which may not be known yet, is not asked for
    every = zip(model.tensors, plan.modes.tolist()) if layers else ()
    for k, (tensor, code) in enumerate(every):
        if code not in layers:
            continue
        mode, layer = MODES[code], layers[code].get(id(tensor))
        parts: tuple[Slice, ...] = ()
        if layer is None:
            raise ValueError(
                f"'{mode.name}' is for {mode.what}. Received: the mode '{mode.name}' for "
                f"'{tensor.name}'. Make it exact or frozen."
            )
        if mode.axis is not None:
            (count, most), chosen = mode.channels(layer), plan.channels[k]
            count = len(chosen) if mode.keeps is None else count
            if len(chosen) != count or chosen[-1] >= most:
                raise ValueError(
                    f"'{mode.name}' trains {count} of the {most} channels of '{tensor.name}'. "
                    f"Received: {len(chosen)} up to number {chosen[-1]}. Give as many as that."
                )
            parts = (Slice.of(mode.kernel(layer), mode.axis(layer), count),)
        found.append(_Use(k, mode, layer, parts))
    return found


def _able(model: Any, name: str) -> dict[int, Any]:
    """The layers of the kernels that can be trained in the mode of that name, by index."""
    code = code_of(name)
    layers = _layers(model, code) if code in MODES else {}
    return {k: layers[id(v)] for k, v in enumerate(model.tensors) if id(v) in layers}


def _layers(model: tf.keras.Model, code: int) -> dict[int, Any]:
    """The layers that can have a mode, by the id of their kernel."""
    built = (layer for layer in model._flatten_layers() if layer.built)
    found = ((MODES[code].kernel(layer), layer) for layer in built)
    return {id(kernel): layer for kernel, layer in found if kernel is not None}


for _code, _r in FILTERED.items():
    register(
        Mode(
            NAMES[_code],
            _code,
            functools.partial(gradients.filterable, r=_r),
            functools.partial(gradients.filtering, r=_r),
            f"kernels of Conv2D and DepthwiseConv2D whose outputs are known to have at least {_r} "
            "pixels a side, with channels last and without dilation",
        )
    )
for _code in sorted(CHANNELS):
    register(
        Mode(
            NAMES[_code],
            _code,
            gradients.sliceable,
            gradients.sliced,
            "kernels of Dense, Conv2D and DepthwiseConv2D with at least two channels, without "
            "groups, dilation, regularizer and constraint",
            keeps=None if _code == SOME else 1.0 / (_code - 10),
            axis=gradients.channel_axis,
        )
    )
