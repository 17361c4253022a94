"""Train functions by plan: a few are kept, the others leave nothing in memory."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from elastic_tf.plan import Plan
from elastic_tf.stack import gradient_registry


class TrainFunctions:
    """The last used train functions, each under the plan that it was made for; None: everything.

    Args:
        size: how many are kept; the least recently used one is dropped.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._entries: OrderedDict[Plan | None, tuple[Any, Any]] = OrderedDict()

    def get(self, plan: Plan | None) -> tuple[Any, Any] | None:
        """(train_function, train_tf_function) of that plan, or None."""
        if plan in self._entries:
            self._entries.move_to_end(plan)
        return self._entries.get(plan)

    def put(self, plan: Plan | None, functions: tuple[Any, Any]) -> None:
        """Keep `functions` under that plan; drop the least recently used beyond `size`."""
        self._entries[plan] = functions
        self._entries.move_to_end(plan)
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
