"""What doctor's checks answer."""

from __future__ import annotations

from typing import NamedTuple

OK = "ok"
NOTE = "note"  # it trains, but something could be better, or may be missed
BROKEN = "broken"  # it cannot train


class Finding(NamedTuple):
    """The answer of one check.

    Attributes:
        check: what was looked at.
        state: `OK`, `NOTE` or `BROKEN`.
        found: what was found.
        mend: what to do about it; empty where there is nothing to do.
    """

    check: str
    state: str
    found: str
    mend: str = ""
