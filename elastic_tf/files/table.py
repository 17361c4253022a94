"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """One column of a table: key of the row, title, and format of a number."""

    key: str
    title: str
    format: str = ""


def format_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column | str]) -> str:
    """Titles, a rule and the rows, numbers to the right; '-' stands for None and what is missing.

    A column may be a key that is its own title. There is no final line break.
    """
    rows, cells = list(rows), []
    for column in columns:
        key, title, form = (column, column, "") if isinstance(column, str) else column
        values = [row.get(key) for row in rows]
        texts = [title, *(_cell(value, form) for value in values)]
        aligned = str.ljust if any(isinstance(value, str) for value in values) else str.rjust
        cells.append([aligned(text, max(map(len, texts))) for text in texts])
    titles, *lines = ("  ".join(line).rstrip() for line in zip(*cells))
    rule = "-" * max(len(line) for line in [titles, *lines])
    return "\n".join([titles, rule, *lines])


def _cell(value: Any, number_format: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, number_format)
