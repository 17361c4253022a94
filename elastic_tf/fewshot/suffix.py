"""Steps that begin behind the frozen part of a network, which is computed once for each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.engine.prefix import between, find_cut, frozen_pass, step_behind
from elastic_tf.engine.snapshot import host_generators_kept
from elastic_tf.files.arrays import array, quarter_of_memory
from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan

_AT_ONCE = 64  # images in a pass through the frozen part


class Suffix:
    """The part of a network that a plan trains and all behind it, traced once for all batch sizes.

    Args:
        model: elastic model of one input, compiled.
        plan: of the model, which trains a tensor.
    """

    def __init__(self, model: ElasticModel, plan: Plan) -> None:
        self._model = model
        trained = [tensor for tensor, on in zip(model.tensors, plan.mask) if on]
        kind = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype)
        self._dtype = kind.dtype.as_numpy_dtype

        forward = tf.function(lambda images: frozen_pass(model, images), autograph=False)
        with host_generators_kept(model):
            graph = forward.get_concrete_function(kind).graph
        self._cut = find_cut(graph, graph.inputs[:1], graph.outputs, trained)
        taken = self._cut.tensors or graph.inputs[:1]  # nothing is frozen before what is trained
        self._before = between(graph, graph.inputs[:1], taken)
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in taken]
        labels = tf.TensorSpec((None,), tf.int64)
        model.make_train_function()  # makes the optimizer's slots
        self._step = tf.function(self._traced, autograph=False, input_signature=[labels, *specs])

    def activations(self, parts: Iterator[np.ndarray], count: int) -> list[np.ndarray]:
        """What steps take of images: an array for each tensor of the cut.

        Args:
            parts: the images, some at a time.
            count: how many they are together.
        """
        found: list[np.ndarray] = []
        at = 0
        for some in parts:
            for start in range(0, len(some), _AT_ONCE):
                images = some[start : start + _AT_ONCE]
                images = tf.constant(images.astype(self._dtype))
                taken = [one.numpy() for one in self._before(images)]
                if not found:
                    left = quarter_of_memory()
                    for one in taken:
                        found.append(array((count, *one.shape[1:]), one.dtype, memory=left))
                        left -= found[-1].nbytes
                for whole, one in zip(found, taken):
                    whole[at : at + len(one)] = one
                at += len(taken[0])
        return found

    def step(self, labels: np.ndarray, taken: Sequence[np.ndarray]) -> dict[str, tf.Tensor]:
        """Train a batch of activations; returns the logs of the step."""
        return self._step(tf.constant(labels), *map(tf.constant, taken))

    def _traced(self, labels: tf.Tensor, *taken: tf.Tensor) -> Any:
        model = self._model
        if not self._cut.tensors:
            return model.train_step((taken[0], labels))
        kind = model.inputs[0]
        images = tf.zeros([tf.shape(labels)[0], *kind.shape[1:]], kind.dtype)
        varying, kinds = self._cut.varying(model), self._cut.kinds
        return step_behind(model.train_step, (images, labels), varying, kinds, taken)
