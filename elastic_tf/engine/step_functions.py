"""Train functions by plan: a few are kept, the others leave nothing in memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from elastic_tf.plan import Plan


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
