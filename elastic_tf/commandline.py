"""Command lines made from dataclasses: each field is an option, its metadata the help."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

Settings = TypeVar("Settings")
_PACKAGE = Path(__file__).resolve().parent
_REFUSED = 2  # exit code, as argparse's


def option(default: Any = dataclasses.MISSING, *, help: str, choices: Sequence[str] = ()) -> Any:
    """A field of a settings dataclass; required where it has no default."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


def parse(kind: type[Settings], description: str, arguments: Sequence[str] | None) -> Settings:
    """Settings from a command line; `--help` lists every field with its default."""
    parser = argparse.ArgumentParser(description=description)
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING
        text = field.metadata["help"]
        options: dict[str, Any] = {"help": text if required else f"{text} (default: %(default)s)"}
        if hints[field.name] is bool:
            options["action"] = "store_true"
        else:
            # `T | None` is given as a T on the command line
            kinds = [k for k in getattr(hints[field.name], "__args__", ()) if k is not type(None)]
            options["type"] = kinds[0] if kinds else hints[field.name]
            options["choices"] = field.metadata["choices"] or None
            options["required"] = required
        if not required:
            options["default"] = field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    return kind(**vars(parser.parse_args(arguments)))


def run(main: Callable[[], Any]) -> None:
    """Call `main`; what it refuses becomes one line, and the program ends with exit code 2.

    Refused is what this project's own checks raise, and a file that cannot be read or written.
    Other errors keep their traceback.
    """
    try:
        main()
    except (ValueError, TypeError, OSError) as error:
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve().parent
        ours = last in (_PACKAGE, Path(sys.argv[0]).resolve().parent)
        if not ours and not (isinstance(error, OSError) and error.filename is not None):
            raise
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(_REFUSED) from None
