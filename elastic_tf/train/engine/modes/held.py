"""Changes of layers while a step is traced, which are taken back.

Replicas of a mirrored strategy trace the same layers interleaved, each with the same changes. The
first one in makes a change, and the last one out takes it back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator

_lock = threading.RLock()
_held: dict[Hashable, tuple[contextlib.ExitStack, int]] = {}  # how to take it back, and holders


@contextlib.contextmanager
def held(key: Hashable, change: Callable[[contextlib.ExitStack], None]) -> Iterator[None]:
    """Hold a change, which says on a stack how it is taken back; all who share it have its key."""
    with _lock:
        if key not in _held:
            with contextlib.ExitStack() as stack:
                change(stack)
                _held[key] = stack.pop_all(), 0
        stack, holders = _held[key]
        _held[key] = stack, holders + 1
    try:
        yield
    finally:
        with _lock:
            stack, holders = _held.pop(key)
            if holders > 1:
                _held[key] = stack, holders - 1
            else:
                stack.close()


def is_held(key: Hashable) -> bool:
    """Whether somebody holds the change of that key."""
    return key in _held
