"""Measure this device: `python -m elastic_tf profile`, with the tables of this folder at hand."""

from __future__ import annotations

import functools
from pathlib import Path

from elastic_tf.commands import commandline, profile

TABLES = Path(__file__).resolve().parent / "tables"

if __name__ == "__main__":
    commandline.run(functools.partial(profile.main, tables=TABLES))
