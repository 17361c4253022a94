"""What cannot pass on the newest TensorFlow, and why; the end of `make test-latest` names it."""

from __future__ import annotations

CANNOT: dict[str, str] = {}
