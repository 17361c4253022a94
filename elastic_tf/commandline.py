"""Command lines made from dataclasses: each field is an option, its metadata the help.

Also how a program of this package ends when it refuses something, and how it starts another one.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")
_PACKAGE = Path(__file__).resolve().parent
_REFUSED = 2  # exit code, as argparse's


def option(default: Any = dataclasses.MISSING, *, help: str, choices: Sequence[str] = ()) -> Any:
    """A field of a settings dataclass; required where it has no default."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


def parse(kind: type[Settings], description: str, arguments: Sequence[str] | None) -> Settings:
    """Settings from a command line; `--help` lists every field with its default.

    A `bool` is a flag, `T | None` is given as a T, `tuple[T, ...]` as one T or several.
    """
    parser = argparse.ArgumentParser(description=description)
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint, required = hints[field.name], field.default is dataclasses.MISSING
        text = field.metadata["help"]
        is_bare = required or field.default == ()
        options: dict[str, Any] = {"help": text if is_bare else f"{text} (default: %(default)s)"}
        if hint is bool:
            options["action"] = "store_true"
        else:
            kinds = [k for k in get_args(hint) if k not in (type(None), Ellipsis)]
            options["type"] = kinds[0] if kinds else hint
            options["choices"] = field.metadata["choices"] or None
            options["required"] = required
            if get_origin(hint) is tuple:
                options["nargs"] = "+"
        if not required:
            options["default"] = field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    given = vars(parser.parse_args(arguments))
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def command(name: str, words: Sequence[str]) -> list[str]:
    """What follows the interpreter to run a command of `python -m elastic_tf`.

    Child processes are started so, for it works from a checkout and from an installed wheel alike.

    Args:
        name: of the command.
        words: its arguments.
    """
    return ["-m", "elastic_tf", name, *words]


def run(main: Callable[[], Any]) -> None:
    """Call `main`; what it refuses becomes one line, and the program ends with exit code 2.

    Refused is what this project's own checks raise, and a file that cannot be read or written.
    Other errors keep their traceback.
    """
    try:
        main()
    except (ValueError, TypeError, OSError) as error:
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
        ours = _PACKAGE in last.parents or last.parent == Path(sys.argv[0]).resolve().parent
        if not ours and not (isinstance(error, OSError) and error.filename is not None):
            raise
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(_REFUSED) from None
