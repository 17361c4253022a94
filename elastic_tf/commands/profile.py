r"""Measure, once per device, what training each tensor of a model costs there.

Example::

    python -m elastic_tf profile --model mobilenet --alpha 0.75 \
        --input-size 160 --batch-size 4 --classes 40 --out mobilenet.json

First it looks for the runtime settings (oneDNN, threads, XLA) that train the model fastest; the
profile is measured under them and names them, and training uses them. --as-is leaves that out.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elastic_tf.commands.commandline import Alone, loading, parse
from elastic_tf.commands.profiling.options import Settings
from elastic_tf.commands.profiling.text import comparison, listing, report
from elastic_tf.timing.profile import TimingProfile

TABLES = Path("profiling") / "tables"  # in a checkout; a wheel brings none

LIST = Alone(
    "--list",
    ("FOLDER",),
    "list the tables that come with the project's checkout, or those in FOLDER/DEVICE/*.json",
    is_optional=True,
)
COMPARE = Alone("--compare", ("A.json", "B.json"), "print two profiles of one model side by side")
ALONE = (LIST, COMPARE)


def main(arguments: Sequence[str] | None = None, tables: Path = TABLES) -> None:
    """Profile; or list or compare, and end the program.

    Args:
        arguments: of the command line; None: those of the program.
        tables: the folder that --list shows where it is given none.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    settings = parse(
        Settings,
        __doc__ or "",
        words,
        {LIST: lambda folder: print(listing(Path(folder or tables))), COMPARE: compare},
    )
    check_writable(settings.out)
    with loading("TensorFlow"):
        from elastic_tf import plots
        from elastic_tf.commands.profiling import work

    profile = work.measure(settings) if settings.as_is else work.searched(settings, words)
    print(report(profile, settings.dearest))
    print(f"Written to {settings.out}")
    if settings.plot is not None:
        plots.save(plots.timing_bars(profile), settings.plot)


def compare(paths: Sequence[str]) -> None:
    """Print two profiles side by side."""
    try:
        one, two = (TimingProfile.load(path) for path in paths)
        print(comparison(one, two))
    except (ValueError, OSError) as error:
        raise SystemExit(f"These profiles cannot be compared: {error}") from error


def check_writable(path: Path) -> None:
    """Refuse, before minutes of measuring, a file that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SystemExit(f"--out cannot be written. Received: '{path}': {error}.") from error
