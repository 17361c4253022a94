"""The layers of a model as a graph of which a part can run by itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf.stack.models import graph_ends


class LayerGraph:
    """A model that is nothing but its graph of layers; another one is a TypeError.

    Attributes:
        whole: a model of the same layers that gives what each of them gives, `count` outputs of the
            model last.
    """

    def __init__(self, model: tf.keras.Model) -> None:
        ends = graph_ends(model)
        if ends is None:
            raise TypeError(f"`model` must be a graph of layers. Received: {model}.")
        inputs, self._outputs = ends
        last = tf.nest.flatten(self._outputs)
        self.count = len(last)
        nodes = getattr(model, "_functional", model)._nodes_by_depth.values()
        results = [one for level in nodes for node in level for one in tf.nest.flatten(node.outputs)]
        own = {id(one): one for one in (*results, *last)}
        for one in last:
            own[id(one)] = own.pop(id(one))  # once, and last
        self._results = [*own.values()]
        self.whole = tf.keras.Model(inputs, self._results)

    def behind(self, numbers: list[int]) -> tf.keras.Model:
        """From some of those results, by their numbers, to the outputs of the model."""
        return tf.keras.Model([self._results[k] for k in numbers], self._outputs)
