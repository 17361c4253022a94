"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def format_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Titles, a rule and the rows, numbers to the right; '-' stands for None and what is missing.

    A column is KEY, KEY:FORMAT or KEY:FORMAT:TITLE, such as "t_dw:.3f:t_dw ms". There is no final
    line break.
    """
    rows, cells = list(rows), []
    for column in columns:
        key, form, title = described(column)
        values = [row.get(key) for row in rows]
        texts = [title, *(_cell(value, form) for value in values)]
        aligned = str.ljust if any(isinstance(value, str) for value in values) else str.rjust
        cells.append([aligned(text, max(map(len, texts))) for text in texts])
    titles, *lines = ("  ".join(line).rstrip() for line in zip(*cells))
    rule = "-" * max(len(line) for line in [titles, *lines])
    return "\n".join([titles, rule, *lines])


def described(column: str) -> tuple[str, str, str]:
    """Key, format of numbers and title of a column; the title is else the key."""
    key, form, title = (*column.split(":"), "", "")[:3]
    return key, form, title or key.replace("_", " ")


def _cell(value: Any, number_format: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, number_format)
