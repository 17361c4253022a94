"""Memory that was freed goes back to the system, where the C library can be told so."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def trim() -> bool:
    """Give back what was freed between what is in use; it takes tens of milliseconds.

    Importance and tracing allocate and free hundreds of megabytes in small parts. The GNU C library
    keeps the holes, which differ from selection to selection, and the process seems to grow.

    Returns:
        Whether anything was given back.
    """
    function = _malloc_trim()
    return function is not None and bool(function(0))


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Of the GNU C library; None elsewhere."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function
