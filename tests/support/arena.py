"""Training in one piece of memory, at the offsets of a memory plan and nowhere else.

What no living buffer covers is NaN, and so is a buffer until it is written: a plan that lets go of
a tensor too early, or places two in the same memory, ends in NaN or in other weights than Keras's.
Known are Dense, Conv2D, their activation functions, pooling, Flatten, Reshape, Add and ReLU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from related import graph
from related import nntrainer as memory
from related.nntrainer.layers import Layer
from related.nntrainer.network import read, weight_name

from elastic_tf import stack
from elastic_tf.engine.forward_order import forward_order
from elastic_tf.plan import as_plan

L = tf.keras.layers
NAN = 0xFF  # a float of such bytes

# The derivative of an activation function, from its result and the derivative of that.
ACTIVATIONS = {
    "relu": lambda y, dy: dy * (y > 0),
    "sigmoid": lambda y, dy: dy * y * (1 - y),
    "tanh": lambda y, dy: dy * (1 - y * y),
    "softmax": lambda y, dy: y * (dy - (y * dy).sum(-1, keepdims=True)),
}


class Arena:
    """The memory of a plan, and the swap file where it has one."""

    def __init__(self, plan: memory.MemoryPlan, shapes: dict[str, tuple[int, ...]]) -> None:
        self.plan, self.shapes = plan, shapes
        self.bytes = np.full(plan.peak, NAN, np.uint8)
        self.file: dict[str, np.ndarray] = {}
        self.order = 0
        self._kept = {"weight", "slots"}  # from step to step
        self._same = {one.name: one.name for one in plan.tensors if one.kind == "weight"}
        for name in self._same:  # another use of a weight -> the weight
            self._same[name] = next((w for w in shapes if _own(name).endswith(f"/{w}")), _own(name))

    def enter(self, order: int) -> None:
        """Go to an execution order."""
        for one in self.plan.tensors:  # what ends here is written to the file
            buffer = next(b for b in self.plan.buffers if b.name == one.buffer)
            if buffer.orders[-1] == self.order:
                self.file[self._key(one)] = self._place(one).copy()
        self.order = order
        alive = np.zeros(len(self.bytes), bool)
        for one in self.plan.buffers:
            if one.orders[0] <= order <= one.orders[-1]:
                assert not alive[one.offset : one.offset + one.bytes].any(), one.name
                alive[one.offset : one.offset + one.bytes] = True
            if one.orders[0] == order:
                whole = (one.orders[0], one.orders[-1]) == (0, len(self.plan.live) - 1)
                is_kept = one.kind in self._kept
                if one.mode == "S" or is_kept and not whole:
                    self._place(one)[:] = self.file.get(self._key(one), self._place(one))
                elif not is_kept:
                    self._place(one)[:] = NAN
        self.bytes[~alive] = NAN

    def get(self, name: str) -> np.ndarray:
        """A copy of a tensor that is in use now."""
        found = self._place(self._now(name)).view(np.float32).copy()
        assert not np.isnan(found).any(), f"{name} is gone at {self.plan.steps.get(self.order)}"
        return found.reshape(self.shapes.get(name, -1))

    def set(self, name: str, value: Any) -> None:
        """Write a tensor that is in use now."""
        place = self._place(self._now(name)).view(np.float32)
        place[:] = np.asarray(value, np.float32).reshape(-1)

    def begin(self, name: str, value: Any) -> None:
        """Write a weight or slots before the first step."""
        self.file[name] = np.asarray(value, np.float32).reshape(-1).view(np.uint8)
        for one in self.plan.tensors:
            if one.name == name and one.orders[0] == 0:
                self._place(one)[:] = self.file[name]

    def _key(self, one: memory.PlannedTensor) -> str:
        return self._same.get(one.name, _own(one.name))

    def _place(self, one: memory.PlannedTensor) -> np.ndarray:
        return self.bytes[one.offset : one.offset + one.bytes]

    def _now(self, name: str) -> memory.PlannedTensor:
        for one in self.plan.tensors:
            if (
                name in (_own(one.name), self._key(one))
                and one.orders[0] <= self.order <= one.orders[-1]
            ):
                return one
        raise AssertionError(f"{name} is not planned at {self.plan.steps.get(self.order)}")


def _own(name: str) -> str:
    """The name of a tensor without the number of its stay in memory."""
    return name.partition("#")[0]


def train(
    model: tf.keras.Model,
    batches: list[tuple[np.ndarray, np.ndarray]],
    rule: Any,
    mask: np.ndarray | None = None,
    clip: float | None = None,
    **options: Any,
) -> tuple[list[np.ndarray], memory.MemoryPlan]:
    """Train a model for the mean squared error in an arena.

    Args:
        model: compiled, so that the plan has slots; it stays as it is.
        batches: of one size.
        rule: "sgd", "momentum" or "adam", as `RULES` has them.
        mask: of `memory.plan`.
        clip: the largest global norm of the gradients.
        **options: of `memory.plan`.

    Returns:
        The weights afterwards in Keras's order, and the plan.
    """
    size = len(batches[0][0])
    plan = memory.plan(model, size, mask, clip is not None, **options)
    tensors = forward_order(model)
    network = read(model, size, tensors, as_plan(mask, len(tensors)))
    keras = {layer.name: layer for layer in model.layers}
    variables = {weight_name(model, v): v for v in stack.weights(model)}
    calls = {call.layer.name: call for call in graph.nodes(model)}
    shapes = {name: tuple(v.shape) for name, v in variables.items()}
    for layer in network.layers:
        found = calls.get(_base(layer.name))
        for name in (*layer.inputs, *layer.outputs):
            if found is not None and name not in shapes:
                ends = found.inputs if name in layer.inputs else found.outputs
                shapes[name] = (size, *ends[0].shape[1:])
    views = (
        one for layer in network.layers if layer.name.endswith("/sum") for one in layer.outputs
    )
    shapes |= {name: shapes[name.rpartition("@")[0]] for name in views}
    shapes |= {f"{name}/derivative": shape for name, shape in shapes.items()}
    arena, layers = Arena(plan, shapes), {layer.name: layer for layer in network.layers}
    for name, variable in variables.items():
        arena.begin(name, variable.numpy())
    for one in plan.tensors:
        if one.kind == "slots":
            arena.begin(_own(one.name), np.zeros(one.bytes // 4))
    for number, (x, y) in enumerate(batches):
        scale, added = None, set()
        for order in range(len(plan.live)):
            arena.enter(order)
            if order == 0:
                (given,), (end,) = network.inputs, network.outputs
                arena.set(given, x)
                if f"{end}/label" in {one.name for one in plan.tensors}:
                    arena.set(f"{end}/label", y)
            what = plan.steps.get(order, "")
            name, _, what = what.rpartition(": ") if ": " in what else ("", "", what)
            if order == len(network.layers):  # the loss, before gradients at the same order
                out = arena.get(end)
                label = arena.get(f"{end}/label").reshape(out.shape)
                arena.set(f"{end}/derivative", 2 * (out - label) / out.size)
            if what == "forward":
                _forward(arena, layers[name], keras)
            elif what == "gradients":
                _gradients(arena, layers[name], keras, added)
            elif what == "derivative":
                _derivative(arena, layers[name], keras)
            elif what == "update":
                weights = [w for w in layers[name].gradients if _updates(plan, w, order)]
                if clip is not None and scale is None:
                    every = [w for layer in network.layers for w in layer.gradients]
                    norm = sum((arena.get(f"{w}/gradient") ** 2).sum() for w in set(every)) ** 0.5
                    scale = clip / max(norm, clip)
                for w in weights:
                    gradient = arena.get(f"{w}/gradient").reshape(shapes[w]) * (scale or 1.0)
                    RULES[rule](arena, w, gradient, number + 1)
        arena.enter(0)  # the end of the step
    return [arena.file[n].view(np.float32).reshape(shapes[n]) for n in variables], plan


def _updates(plan: memory.MemoryPlan, weight: str, order: int) -> bool:
    found = (one for one in plan.tensors if _own(one.name) == f"{weight}/gradient")
    return any(order in one.orders for one in found)


def _sgd(arena: Arena, weight: str, gradient: np.ndarray, step: int) -> None:
    arena.set(weight, arena.get(weight) - 0.1 * gradient)


def _momentum(arena: Arena, weight: str, gradient: np.ndarray, step: int) -> None:
    velocity = 0.9 * arena.get(f"{weight}/slots").reshape(gradient.shape) - 0.1 * gradient
    arena.set(f"{weight}/slots", velocity)
    arena.set(weight, arena.get(weight) + velocity)


def _adam(arena: Arena, weight: str, gradient: np.ndarray, step: int) -> None:
    m, v = arena.get(f"{weight}/slots").reshape(2, *gradient.shape)
    m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    arena.set(f"{weight}/slots", [m, v])
    rate = 0.01 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
    arena.set(weight, arena.get(weight) - rate * m / (v**0.5 + 1e-7))


RULES = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
OPTIMIZERS = {
    "sgd": lambda **kwargs: tf.keras.optimizers.SGD(0.1, **kwargs),
    "momentum": lambda **kwargs: tf.keras.optimizers.SGD(0.1, 0.9, **kwargs),
    "adam": lambda **kwargs: tf.keras.optimizers.Adam(0.01, **kwargs),
}


def _base(name: str) -> str:
    """The name of the Keras layer of a use of it."""
    return name.removesuffix("/activation").partition(":")[0].partition("/")[0].partition("@")[0]


def _linear(layer: Any, xs: list[Any], weights: list[Any]) -> tf.Tensor:
    """A layer without its activation function, on given weights."""
    if isinstance(layer, L.Dense):
        y = tf.matmul(xs[0], weights[0])
    elif isinstance(layer, L.Conv2D):
        y = tf.nn.conv2d(xs[0], weights[0], [*layer.strides], layer.padding.upper())
    else:
        return layer(xs if len(xs) > 1 else xs[0])
    return tf.nn.bias_add(y, weights[1]) if layer.use_bias else y


def _activation(layer: Layer, keras: dict[str, Any]) -> str:
    """The name of the activation function that a use of a layer is; "" if it is none."""
    found = keras[_base(layer.name)]
    if isinstance(found, L.ReLU):
        return "relu"
    if isinstance(found, L.Activation) or layer.name.endswith("/activation"):
        return found.activation.__name__
    return ""


def _forward(arena: Arena, layer: Layer, keras: dict[str, Any]) -> None:
    if layer.name.endswith("/sum"):
        return  # views of what is there
    xs = [arena.get(name) for name in layer.inputs]
    if found := _activation(layer, keras):
        arena.set(layer.outputs[0], tf.keras.activations.get(found)(tf.constant(xs[0])))
    else:
        weights = [arena.get(name) for name in layer.weights]
        arena.set(layer.outputs[0], _linear(keras[_base(layer.name)], xs, weights))


def _gradients(arena: Arena, layer: Layer, keras: dict[str, Any], added: set[str]) -> None:
    xs = [_or_zeros(arena, name, layer.for_gradients) for name in layer.inputs]
    weights = {name: tf.zeros(arena.shapes[name]) for name in layer.weights}  # linear in them
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = _linear(keras[_base(layer.name)], xs, [*weights.values()])
    dy = arena.get(f"{layer.outputs[0]}/derivative").reshape(y.shape)
    for name, gradient in tape.gradient(y, weights, dy).items():
        if name in layer.gradients:
            before = arena.get(f"{name}/gradient").reshape(gradient.shape) if name in added else 0
            arena.set(f"{name}/gradient", gradient + before)
            added.add(name)


def _derivative(arena: Arena, layer: Layer, keras: dict[str, Any]) -> None:
    dys = [arena.get(f"{name}/derivative") for name in layer.outputs]
    if layer.name.endswith("/sum"):
        arena.set(f"{layer.inputs[0]}/derivative", sum(dy.reshape(-1) for dy in dys))
    elif found := _activation(layer, keras):
        y = arena.get(layer.outputs[0])
        dx = ACTIVATIONS[found](y, dys[0].reshape(y.shape))
        arena.set(f"{layer.inputs[0]}/derivative", dx)
    else:
        xs = [_or_zeros(arena, name, layer.for_derivatives) for name in layer.inputs]
        with tf.GradientTape() as tape:
            tape.watch(xs)
            weights = [arena.get(name) for name in layer.weights]
            y = _linear(keras[_base(layer.name)], xs, weights)
        found = tape.gradient(y, xs, dys[0].reshape(y.shape))
        for name, dx in zip(layer.inputs, found):
            if name in layer.derivatives:
                arena.set(f"{name}/derivative", dx)


def _or_zeros(arena: Arena, name: str, taken: tuple[str, ...]) -> tf.Tensor:
    """An input; zeros where the plan says that it is not read, as where a layer is linear in it."""
    return tf.constant(arena.get(name)) if name in taken else tf.zeros(arena.shapes[name])
