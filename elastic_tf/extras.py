"""Packages that only some parts need: an extra of the installation brings each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Let imports inside of it that fail say, by an ImportError, which extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"This needs a package that is not installed. Received: {error}. Install it: "
            f'pip install "elastic_tf[{name}]", or pip install ".[{name}]" in the checkout.',
            name=error.name,
        ) from error
