"""Traced train functions by mask: a few are kept, the others leave no trace in memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tensorflow.python.framework.ops import gradient_registry


class TrainFunctions:
    """The last used train functions, each under the mask that it was made for.

    Args:
        size: how many are kept; the least recently used one is dropped for good.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._entries: OrderedDict[bytes, tuple[Any, Any]] = OrderedDict()

    def get(self, key: bytes) -> tuple[Any, Any] | None:
        """(train_function, train_tf_function) of that mask, or None."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: bytes, functions: tuple[Any, Any]) -> None:
        """Keep `functions` under that mask; drop the least recently used beyond `size`."""
        self._entries[key] = functions
        self._entries.move_to_end(key)
        while len(self._entries) > self.size:
            _, (_, dropped) = self._entries.popitem(last=False)
            release(dropped)

    def clear(self) -> None:
        """Drop all."""
        while self._entries:
            _, (_, dropped) = self._entries.popitem()
            release(dropped)

    def __len__(self) -> int:
        return len(self._entries)


def release(function: Any) -> None:
    """Free what TensorFlow would keep of a `tf.function` that is never called again.

    `tf.custom_gradient` (in `tf.nn.silu`, in the sum of gradients over replicas) enters a closure
    over the traced graph into the global gradient registry of TensorFlow 2.15, under a name used
    once, and nothing ever removes it.

    Args:
        function: the `tf.function`; anything else (a step run eagerly) holds no graph.
    """
    for concrete in getattr(function, "_list_all_concrete_functions", list)():
        graph_def = concrete.graph.as_graph_def()
        bodies = [graph_def.node, *(inner.node_def for inner in graph_def.library.function)]
        names = {
            node.attr["_gradient_op_type"].s.decode()
            for body in bodies
            for node in body
            if "_gradient_op_type" in node.attr
        }
        for name in names:
            if name.startswith("CustomGradient-"):
                gradient_registry._registry.pop(name, None)
