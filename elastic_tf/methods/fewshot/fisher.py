"""Fisher information of the outputs of kernels: how much the loss hangs on each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.stack import never_differentiated
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.snapshot import host_generators_kept

_BETWEEN = frozenset({"BiasAdd", "FusedBatchNormV3", "Identity"})  # a kernel and its activation
_ACTIVATIONS = frozenset("Elu LeakyRelu Relu Relu6 Selu Sigmoid Softplus Tanh".split())


class ChannelFisher:
    """Fisher information of each output channel of the kernels of a model.

    delta[o] = sum over n of (sum over places of a * g)^2 / (2 count), a the channel's activation of
    sample n, behind the activation function of its kernel, and g the gradient of the loss of that
    sample alone. Layers run as in inference. A kernel's Fisher potential is the sum of its deltas.

    Args:
        model: elastic model, built.
        loss: (outputs, y, *shared) -> (n,), the loss of each sample.
        kernels: indices of the tensors that are looked at; None: of all kernels.

    Source: Kwon et al., TinyTrain, ICML 2024, Eq. (2), which leaves open where a is taken.
    """

    def __init__(
        self, model: tf.keras.Model, loss: Callable[..., tf.Tensor], kernels: Any = None
    ) -> None:
        self._model, self._loss = arguments.elastic(model), loss
        chosen = range(len(model.tensors)) if kernels is None else kernels
        self._index = {id(model.tensors[k]): int(k) for k in chosen}
        self._found: list[int] = []  # kernel of each result of the trace
        self._run: Any = None

    def __call__(self, x: Any, y: Any, *shared: Any, batch_size: int = 32) -> dict[int, np.ndarray]:
        """The deltas of each kernel, by its index among the tensors; float64 (channels,).

        The loss is given what is `shared` as a whole; x and y are samples first, some at a time.

        Raises:
            ValueError: a delta is not finite.
        """
        found: dict[int, Any] = {}
        with host_generators_kept(self._model):
            for start in range(0, len(x), batch_size):
                parts = (a[start : start + batch_size] for a in (x, y))
                results = self._traced(*parts, *shared)  # the first call makes `_found`
                for k, part in zip(self._found, results):
                    found[k] = found.get(k, 0.0) + part.numpy().astype(np.float64)
        for k, sums in found.items():
            if not np.isfinite(sums).all():
                raise ValueError(
                    "Fisher information must be finite. Received: "
                    f"{arguments.brief(sums)} of '{self._model.tensors[k].name}'. Look at the "
                    "samples and the weights."
                )
        return {k: found[k] / (2 * len(x)) for k in sorted(found)}

    def _traced(self, *arrays: Any) -> list[tf.Tensor]:
        """One trace serves all lengths."""
        given = [tf.convert_to_tensor(one) for one in arrays]
        if self._run is None:
            kinds = [tf.TensorSpec((None, *one.shape[1:]), one.dtype) for one in given]
            self._run = tf.function(self._trace, input_signature=kinds)
        return self._run(*given)

    def _trace(self, x: tf.Tensor, *given: tf.Tensor) -> list[tf.Tensor]:
        with never_differentiated(), modes.recorded(self._model) as uses:
            total = tf.reduce_sum(self._loss(self._model(x, training=False), *given))
        uses = [use for use in uses if id(use.kernel) in self._index]
        outputs = [_activated(use.y) for use in uses]
        results: dict[int, tf.Tensor] = {}
        for use, a, g in zip(uses, outputs, tf.gradients(total, outputs)):
            if g is not None:
                # of each sample; a depthwise kernel's channel may have several outputs
                products = tf.cast(a * g, tf.float32)
                sums = tf.reduce_sum(products, range(1, len(a.shape) - 1))
                k, each = self._index[id(use.kernel)], getattr(use.layer, "depth_multiplier", 1)
                sums = tf.reduce_sum(tf.reshape(sums, (-1, a.shape[-1] // each, each)), -1)
                results[k] = results.get(k, 0.0) + tf.reduce_sum(sums**2, 0)
        self._found = [*results]
        return [*results.values()]


def _activated(y: tf.Tensor) -> tf.Tensor:
    """What the activation function behind a product gives; else the last it is alone used for."""
    while len(y.consumers()) == 1:
        (op,) = y.consumers()
        if op.type not in _BETWEEN | _ACTIVATIONS or op.inputs[0] is not y:
            break
        y = op.outputs[0]
        if op.type in _ACTIVATIONS:
            break
    return y
