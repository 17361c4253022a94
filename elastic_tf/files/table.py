"""Tables in plain text, by tabulate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tabulate import tabulate


class Column(NamedTuple):
    """One column of a table: key of the row, title, and format of a number."""

    key: str
    title: str
    format: str = ""


def format_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column | str]) -> str:
    """Titles, a rule and the rows, numbers to the right; '-' stands for None and what is missing.

    A column may be a key that is its own title. There is no final line break.
    """
    chosen = [Column(item, item) if isinstance(item, str) else item for item in columns]
    rows = list(rows)
    words = [any(isinstance(row.get(column.key), str) for row in rows) for column in chosen]
    cells = [[_cell(row.get(column.key), column.format) for column in chosen] for row in rows]
    titles, *lines = tabulate(
        [[column.title for column in chosen], *cells],
        tablefmt="plain",  # "simple" widens each column by two for its title
        disable_numparse=True,
        colalign=["left" if word else "right" for word in words],
    ).splitlines()
    rule = "-" * max(len(line) for line in [titles, *lines])
    return "\n".join([titles, rule, *lines])


def _cell(value: Any, number_format: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, number_format)
