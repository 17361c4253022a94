"""Train functions by plan and cut: a few are kept, the others leave nothing in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class TrainFunctions:
    """The last used train functions, each under what it was made for.

    Args:
        size: how many are kept; the least recently used one is dropped.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._entries: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[Any, Any] | None:
        """(train_function, train_tf_function) of that key, or None."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Hashable, functions: tuple[Any, Any]) -> None:
        """Keep `functions` under that key; drop the least recently used beyond `size`."""
        self._entries[key] = functions
        self._entries.move_to_end(key)
        while len(self._entries) > self.size:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
