"""Command lines made from dataclasses: each field is an option, its metadata the help.

Also how a program of this package ends when it refuses something, and how it starts another one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")
_PACKAGE = Path(__file__).resolve().parent
REFUSED = 2  # exit code, as argparse's
_INTERRUPTED = 130  # exit code, as a shell reports SIGINT
_WIDEST = 100  # characters in a line of --help
_LONG = 40  # characters of choices that are named in the help instead of beside the option


def option(default: Any = dataclasses.MISSING, *, help: str, choices: Sequence[str] = ()) -> Any:
    """A field of a settings dataclass; required where it has no default."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


@dataclasses.dataclass(frozen=True)
class Alone:
    """An option that stands instead of all settings and ends the program, as `--help` does.

    Attributes:
        name: with its dashes.
        values: names of its values.
        help: what it does.
        is_optional: whether its value may be left out; only where it has one.
    """

    name: str
    values: tuple[str, ...]
    help: str
    is_optional: bool = False


def parse(
    kind: type[Settings],
    description: str,
    arguments: Sequence[str] | None,
    alone: Mapping[Alone, Callable[[Any], None]] | None = None,
) -> Settings:
    """Settings from a command line; `--help` lists every field with its default.

    A `bool` is a flag, `T | None` is given as a T, `tuple[T, ...]` as one T or several.

    Args:
        kind: a dataclass whose fields are made by `option`.
        description: shown by `--help`; indented blocks keep their line breaks, and a block may be
            announced by "::", as in reStructuredText.
        arguments: of the command line; None: those of the program.
        alone: what each option that stands alone calls, with its values: a list, or where the value
            may be left out it or None.

    Raises:
        SystemExit: after `--help` and options that stand alone, and where arguments are refused.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=_Help)
    if alone:
        group = parser.add_argument_group("instead of all other options")
        for one, call in alone.items():
            names = one.values[0] if one.is_optional else one.values
            count = "?" if one.is_optional else len(one.values)
            group.add_argument(
                one.name, action=_Call, call=call, nargs=count, metavar=names, help=one.help
            )
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint, required = hints[field.name], field.default is dataclasses.MISSING
        text = field.metadata["help"]
        is_bare = required or field.default == ()
        options: dict[str, Any] = {}
        if hint is bool:
            options["action"] = "store_true"
        else:
            kinds = [k for k in get_args(hint) if k not in (type(None), Ellipsis)]
            options["type"] = kinds[0] if kinds else hint
            choices = field.metadata["choices"]
            options["choices"] = choices or None
            options["required"] = required
            if len(",".join(choices)) > _LONG:  # argparse never wraps them
                options["metavar"] = field.name.upper()
                text += f": {', '.join(choices)}"
            if get_origin(hint) is tuple:
                options["nargs"] = "+"
        if not required:
            options["default"] = field.default
        options["help"] = text if is_bare else f"{text} (default: %(default)s)"
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    given = vars(parser.parse_args(arguments))
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


class _Help(argparse.HelpFormatter):
    """Wraps paragraphs and keeps indented blocks, which are examples, as they stand."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns, _WIDEST) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = re.split(r"\n\s*\n", text.rstrip().replace("::\n", ":\n"))
        return "\n\n".join(
            block if block.startswith(" ") else super(_Help, self)._fill_text(block, width, indent)
            for block in blocks
        )


class _Call(argparse.Action):
    """Calls with the option's values and ends the program."""

    def __init__(self, *, call: Callable[[Any], None], **options: Any) -> None:
        super().__init__(**options, default=argparse.SUPPRESS)
        self._call = call

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        self._call(values)
        parser.exit()


@contextlib.contextmanager
def telling(text: str) -> Iterator[None]:
    """Show a line on a terminal while something takes seconds, and wipe it away afterwards."""
    is_shown = sys.stderr is not None and sys.stderr.isatty()
    if is_shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Import in it what takes seconds; ends the program where a package is not there.

    Args:
        what: shown on a terminal meanwhile.
    """
    try:
        with telling(f"Loading {what} ..."):
            yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "elastic_tf":
            raise
        raise SystemExit(
            f"error: {sys.argv[0]} needs the package '{error.name}'. Received: an environment "
            f"without it, {sys.executable}. Install elastic_tf with pip, which brings its packages."
        ) from error


def command(name: str, words: Sequence[str]) -> list[str]:
    """What follows the interpreter to run a command of `python -m elastic_tf`.

    Child processes are started so, for it works from a checkout and from an installed wheel alike.

    Args:
        name: of the command.
        words: its arguments.
    """
    return ["-m", "elastic_tf", name, *words]


def typed(words: Sequence[str]) -> str:
    """A command for this Python, as it is typed in the present directory.

    Args:
        words: what follows the interpreter.
    """
    python = Path(sys.executable)
    if Path.cwd() in python.parents:
        python = python.relative_to(Path.cwd())
    return shlex.join([str(python), *words])


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
        raise SystemExit(REFUSED) from None
    except KeyboardInterrupt:
        print(
            "\nInterrupted. With the same options, train and compare go on after the last finished "
            "epoch.",
            file=sys.stderr,
        )
        raise SystemExit(_INTERRUPTED) from None
