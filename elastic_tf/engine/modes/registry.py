"""The modes that tensors can be trained in beside exact and frozen, by their code in a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.engine.modes import sparing
from elastic_tf.engine.modes.held import held
from elastic_tf.engine.modes.operations import kernel_of
from elastic_tf.optimizers.slices import Slice
from elastic_tf.plan import CHANNELS, EXACT, FROZEN, NAMES, Plan, code_of, in_row


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
        drops: whether the layer's inputs are not kept for the backward pass; rectifiers and
            normalisations keep less then.
    """

    name: str
    code: int
    kernel: Callable[[Any], tf.Variable | None]
    context: Callable[..., AbstractContextManager[Any]]
    what: str = "kernels of layers that the mode knows"
    keeps: float | None = None
    axis: Callable[[Any], int] | None = None
    drops: bool = False

    def channels(self, layer: Any) -> tuple[int, int]:
        """How many channels of a layer's kernel are trained, and of how many."""
        kernel: Any = self.kernel(layer)
        most = kernel.shape[-1 if self.axis is None else self.axis(layer)]
        return self.share_of(most), most

    def share_of(self, channels: int) -> int:
        """How many of so many channels are trained."""
        return max(int(channels * (self.keeps or 1.0)), 1)

    def slice(self, layer: Any, count: int) -> Slice:
        """So many trained channels of a layer's kernel."""
        assert self.axis is not None  # of a mode that trains some channels
        return Slice.of(self.kernel(layer), self.axis(layer), count)


#: Every mode that a plan can hold beside frozen and exact, by its code.
MODES: dict[int, Mode] = {}


def register(mode: Mode) -> None:
    """Let plans hold a mode.

    Raises:
        ValueError: its name or code is that of another one, or the code is out of range.
    """
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


def check(model: tf.keras.Model, tensors: Sequence[tf.Variable], plan: Plan) -> None:
    """Refuse a plan with a mode that a tensor cannot have.

    Raises:
        ValueError: a tensor is no kernel for its mode, or has other channels.
    """
    layers = {code: _layers(model, code) for code in _used(plan)}
    for k, (tensor, code) in enumerate(zip(tensors, plan.modes.tolist())):
        if code not in layers:
            continue
        mode, layer = MODES[code], layers[code].get(id(tensor))
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


def slices(
    model: tf.keras.Model, tensors: Sequence[tf.Variable], plan: Plan
) -> list[tuple[Slice, tuple[int, ...]]]:
    """The slice of each kernel of which some channels are trained, and these channels.

    Raises:
        ValueError: as of `check`.
    """
    check(model, tensors, plan)
    layers = {code: _layers(model, code) for code in _used(plan)}
    found = []
    for k, channels in plan.channels.items():
        code = int(plan.modes[k])
        layer = layers[code][id(tensors[k])]
        found.append((MODES[code].slice(layer, len(channels)), tuple(channels)))
    return found


def choose(model: tf.keras.Model, tensors: Sequence[tf.Variable], plan: Plan) -> None:
    """Train the channels of a plan, where it has some, from the next step on."""
    for found, channels in slices(model, tensors, plan):
        found.choose(channels)


def kernels(model: Any, name: str) -> np.ndarray:
    """True for the kernels that can be trained in the mode of that name; bool, shape (N,)."""
    layers = _layers(model, code_of(name))
    return np.array([id(tensor) in layers for tensor in model.tensors])


def channel_axes(model: Any, name: str) -> dict[int, int]:
    """The axis of the channels of each kernel that can be trained by some of them, by its index."""
    code = code_of(name)
    layers, mode = _layers(model, code), MODES[code]
    if mode.axis is None:
        return {}
    found = ((k, layers.get(id(tensor))) for k, tensor in enumerate(model.tensors))
    return {k: mode.axis(layer) for k, layer in found if layer is not None}


def everywhere(model: Any, name: str) -> Plan:
    """All exact, but the mode of that name for each kernel that can have it: its first channels.

    Raises:
        ValueError: no such mode, or no kernel can have it.
    """
    code, layers = code_of(name), _layers(model, code_of(name)) if code_of(name) in MODES else {}
    able = {k: layers[id(v)] for k, v in enumerate(model.tensors) if id(v) in layers}
    if not able:
        raise ValueError(
            f"A mode must be one that kernels of the model can have. Received: '{name}' for "
            f"'{model.name}'. Leave it out."
        )
    plan, mode = Plan.full(len(model.tensors)), MODES[code]
    if mode.axis is not None:
        return plan.with_channels(name, {k: range(mode.channels(v)[0]) for k, v in able.items()})
    return plan.with_mode(name, np.isin(np.arange(len(plan)), list(able)))


@contextlib.contextmanager
def installed(model: tf.keras.Model, tensors: Sequence[tf.Variable], plan: Plan) -> Iterator[None]:
    """Trace the layers of a model as the modes of a plan change them."""
    layers = {code: _layers(model, code) for code in _used(plan)}
    parts: dict[int, tuple[Slice]] = {}
    for k, (found, channels) in zip(plan.channels, slices(model, tensors, plan)):
        found.in_row, parts[k] = in_row(channels), (found,)

    def change(stack: contextlib.ExitStack) -> None:
        if any(MODES[code].drops for code in layers):
            trained = {id(v): int(c) for v, c in zip(tensors, plan.modes) if c != FROZEN}
            codes = [(one, trained.get(id(kernel_of(one)))) for one in model._flatten_layers()]
            kept = [
                one for one, c in codes if c is not None and not (c in MODES and MODES[c].drops)
            ]
            stack.enter_context(sparing.spared(model, kept))
        for k, code in enumerate(plan.modes.tolist()):
            if code in layers:
                layer = layers[code][id(tensors[k])]
                stack.enter_context(MODES[code].context(layer, *parts.get(k, ())))

    with held((plan, id(model)), change):
        yield


def watched(
    model: tf.keras.Model,
    tensors: Sequence[tf.Variable],
    plan: Plan,
    variables: Sequence[tf.Variable],
) -> list[tf.Variable]:
    """What gradients are taken for to train some of the tensors: slices in the place of kernels."""
    found = zip(plan.channels, slices(model, tensors, plan))
    parts = {id(tensors[k]): one.variable for k, (one, _) in found}
    return [parts.get(id(variable), variable) for variable in variables]


def _used(plan: Plan) -> set[int]:
    return set(plan.modes.tolist()) & MODES.keys()


def _layers(model: tf.keras.Model, code: int) -> dict[int, Any]:
    """The layers that can have a mode, by the id of their kernel."""
    built = (layer for layer in model._flatten_layers() if layer.built)
    found = ((MODES[code].kernel(layer), layer) for layer in built)
    return {id(kernel): layer for kernel, layer in found if kernel is not None}
