"""What can be done without code: `elastic-tf COMMAND ...`, `python -m elastic_tf COMMAND ...`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elastic_tf import __version__
from elastic_tf.app.commands import commandline

COMMANDS = {
    "profile": "measure, once per device, what training each tensor of a model costs there",
    "forecast": "say what a training will take, before it runs",
    "memory": "say what memory a training step needs, before it runs",
    "train": "adapt a pre-trained model to new images by one method",
    "evaluate": "say how well a finished training does on its test images, or on others",
    "report": "write a page on a finished training: accuracy, seconds, mistakes, its use",
    "predict": "say what images show, by a finished training",
    "export": "write the network of a finished training for other programs",
    "compare": "compare methods at equal epochs and at equal seconds",
    "doctor": "check the installation, and say what to fix",
}
# The page of `app.commands` that holds a command, where that is not called as the command is.
_PAGES = {
    **dict.fromkeys(("doctor", "profile", "forecast", "memory"), "before"),
    **dict.fromkeys(("evaluate", "predict"), "trained"),
}
# What Keras loads where it is installed, for wrappers and pictures of its own and for data frames,
# which no command has: two of the five seconds in which Keras starts.
_SPARED = ("matplotlib", "pandas", "sklearn")


def command(name: str) -> Callable[..., Any]:
    """The function of a command; beside it stands the dataclass of its options."""
    page = importlib.import_module(f"elastic_tf.app.commands.{_PAGES.get(name, name)}")
    return getattr(page, name)


class Spared:
    """A finder of modules that finds some of them for everybody but Keras."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse where Keras asks; leave others to the finders behind this one."""
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        asks = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name in _SPARED and asks in ("keras", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r} for Keras in a command.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that comes first; the words after it are its own."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    is_installed = Path(sys.argv[0]).stem == "elastic-tf"
    program = "elastic-tf" if is_installed else "python -m elastic_tf"
    listed = "\n".join(f"  {name:<8} {text}" for name, text in COMMANDS.items())
    parser = commandline.Parser(
        prog=program,
        description="Train the part of a Keras model that pays off most within a share of the step "
        f"time.\n\ncommands:\n{listed}",
        epilog=f"{program} COMMAND --help explains a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"elastic_tf {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of those above")
    name = parser.parse_args(words[:1]).command
    sys.argv = [f"{program} {name}", *words[1:]]  # as a script of that name would see it
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, Spared)
    commandline.run(command(name))


if __name__ == "__main__":
    main()
