"""Train functions by mask: a few are kept, the others leave nothing in memory."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from elastic_tf.stack import gradient_registry


class TrainFunctions:
    """The last used train functions, each under the mask that it was made for.

    Args:
        size: how many are kept; the least recently used one is dropped.
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
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


@contextlib.contextmanager
def never_differentiated() -> Iterator[None]:
    """Forget the custom gradients of what is traced in this context; nobody will ask for them.

    In a graph, `tf.custom_gradient` (in `tf.nn.silu`, in the sum of gradients over replicas) enters
    a closure over the graph into TensorFlow's global gradient registry, under a name used once.
    TensorFlow 2.15 never removes it, so that the graph outlives the function it belongs to. The
    entry serves to differentiate the finished function, which makes no sense for a training step.
    """
    registry = gradient_registry._registry
    before = set(registry)
    try:
        yield
    finally:
        for name in set(registry) - before:
            if name.startswith("CustomGradient-"):
                registry.pop(name, None)
