"""Command lines made from dataclasses: each field is an option, its metadata the help."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from elastic_tf.arguments import nearest

Settings = TypeVar("Settings")
_PACKAGE = Path(__file__).resolve().parents[2]
_TYPES = {"str": str, "int": int, "float": float, "Path": Path}
_REFUSED, _INTERRUPTED = 2, 130  # exit codes: argparse's, and a shell's after SIGINT
_options: dict[str, str] = {}  # of the command that runs, by what errors call them


def option(default: Any = dataclasses.MISSING, *, help: str, **more: Any) -> Any:
    """A field of a settings dataclass; required on the command line where it has no default.

    `more`: `choices`; `check`, which refuses a wrong value, given as (name, value); `bare`, for
    what has no name before it on the command line, and is called so in the help.
    """
    required = default is dataclasses.MISSING
    metadata = {"help": help, "required": required, **more}
    return dataclasses.field(default=None if required else default, metadata=metadata)


def parse(
    kind: type[Settings], description: str | None, arguments: Sequence[str] | None
) -> Settings:
    """Settings from a command line, of the program if `arguments` are None; ends it if refused.

    A `bool` is a flag, `T | None` is given as a T, `tuple[T, ...]` as one T or several.
    """
    parser = Parser(
        description=inspect.cleandoc(description or "").replace("::\n", ":\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    for field in fields:
        # the annotation is text, as `from __future__ import annotations` leaves it
        word, *inner = re.findall(r"\w+", str(field.type))
        options = {"default": field.default, **field.metadata}
        options.pop("check", None)
        if field.default not in (None, (), "", False):
            options["help"] += " (default: %(default)s)"
        if word == "bool":
            options["action"] = "store_true"
        elif word == "tuple":
            options.update(type=_TYPES[inner[0]], nargs="+")
        else:
            options["type"] = _TYPES[word]
        name = f"--{field.name.replace('_', '-')}"
        if "bare" in options:
            name, options["metavar"] = field.name, options.pop("bare")
            del options["required"]
        parser.add_argument(name, **options)
        _options[f"`{field.name}`"] = name
    found = vars(parser.parse_args(arguments))
    settings = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    for field in fields:
        check = field.metadata.get("check")
        if check and found[field.name] is not None:
            check(field.name, found[field.name])
    return settings


class Parser(argparse.ArgumentParser):
    """Says in one line what it refuses, and what may have been meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse an option that there is not, before one is missed that it may stand for."""
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            if re.match("--.", name) and name not in self._option_string_actions:
                self.error(f"unrecognized arguments: {word}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program."""
        known: list[str] = [*self._option_string_actions]
        received = re.search(r"arguments: ([^\s=]+)", message)
        choice = re.fullmatch(r".*invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice is not None:
            received, known = choice, re.findall(r"[\w-]+", choice[2])
        names = {name.lstrip("-"): name for name in known}  # dashes would make all alike
        near = nearest(received[1].lstrip("-"), names) if received else ""
        meant = f"Did you mean {names[near]}? " if near else ""
        self.exit(_REFUSED, f"error: {message}. {meant}{self.prog} --help lists what there is.\n")


def words_of(options: dict[str, Any]) -> list[str]:
    """The command line that gives these options; those that are None, False or () are left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False or value == ():
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += map(str, value if isinstance(value, tuple) else (value,))
    return words


def run(main: Callable[[], Any]) -> None:
    """Call `main`; what this project refuses, and a file's error, becomes one line and exit code 2.

    Other errors keep their traceback.
    """
    try:
        main()
    except (ValueError, TypeError, OSError, ImportError) as error:
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
        ours = _PACKAGE in last.parents or last.parent == Path(sys.argv[0]).resolve().parent
        if not ours and not (isinstance(error, OSError) and error.filename is not None):
            raise
        said = re.sub("`[a-z_]+`", lambda found: _options.get(found[0], found[0]), str(error))
        print("error: " + " ".join(said.split()), file=sys.stderr)
        raise SystemExit(_REFUSED) from None
    except KeyboardInterrupt:
        said = "With the same options train --rho and compare go on, others begin anew."
        print(f"\nInterrupted. {said}", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
