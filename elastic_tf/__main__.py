"""What can be done without code: `python -m elastic_tf COMMAND ...`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from elastic_tf import __version__
from elastic_tf.commands import commandline

PROGRAM = "python -m elastic_tf"
# Each is a module of `elastic_tf.commands` with a `main`. It loads TensorFlow, where it needs that,
# after it has read and checked its words: help and refusals do not wait for it.
COMMANDS = {
    "profile": "measure, once per device, what training each tensor of a model costs there",
    "train": "adapt a pre-trained model to new images by one method",
    "compare": "compare methods at equal epochs and at equal seconds",
    "plot": "draw a timing profile, or the course of trainings",
    "doctor": "check the installation and the machine, and say what to mend",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that comes first; the words after it are its own."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        sys.argv = [f"{PROGRAM} {words[0]}", *words[1:]]  # as a script of that name would see it
        with commandline.loading(words[0]):
            command = importlib.import_module(f"elastic_tf.commands.{words[0]}")
        commandline.run(command.main)
        return
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Train the part of a Keras model that pays off most within a share of the step "
        "time.",
        epilog=f"{PROGRAM} COMMAND --help explains a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"elastic_tf {__version__}")
    known = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, text in COMMANDS.items():
        known.add_parser(name, help=text)
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(commandline.REFUSED)
    parser.parse_args(words)


if __name__ == "__main__":
    main()
