"""The reference: `room` lists what a folder of the package holds, `command` what one takes."""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock
from sphinx.util.docutils import SphinxDirective

import elastic_tf
from elastic_tf.__main__ import main


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("room", Room)
    app.add_directive("command", Command)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Room(SphinxDirective):
    """`.. room:: selection`: the folder and its modules, or the names in its `__all__`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        left_out = ", ".join(["METHODS", "set", *elastic_tf.__all__])  # the last on the first page
        for module in modules(f"elastic_tf.{self.arguments[0]}"):
            name = module.__name__
            lines += [f".. rubric:: {name}", ""] if lines else []
            lines += [f".. automodule:: {name}", f"   :exclude-members: {left_out}", ""]
        return self.parse_text_to_nodes("\n".join(lines))


class Command(SphinxDirective):
    """`.. command:: train`: what `python -m elastic_tf train --help` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        said, words = io.StringIO(), sys.argv
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([self.arguments[0], "--help"])
        sys.argv = words
        return [nodes.literal_block(said.getvalue(), said.getvalue(), language="text")]


def modules(name: str) -> Iterator[ModuleType]:
    """A folder, or a file, and all modules below it that no `__all__` speaks for."""
    with mock(["flwr"]):  # of an extra, which building the pages does without
        module = importlib.import_module(name)
    yield module
    if not hasattr(module, "__all__"):
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield from modules(f"{name}.{found.name}")
