"""The options of a command, from the dataclass that its command line is made of."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from elastic_tf.commands import commandline


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-options", CommandOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class CommandOptions(SphinxDirective):
    """`.. command-options:: train` lists what `python -m elastic_tf train` takes."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The command's description and its options."""
        name = self.arguments[0]
        module = importlib.import_module(f"elastic_tf.commands.{name}")
        lines = [*(module.__doc__ or "").splitlines(), "", f".. program:: elastic_tf {name}", ""]
        for field in dataclasses.fields(module.Settings):
            lines += described(field)
        around = nodes.container()
        around.document = self.state.document
        self.state.nested_parse(StringList(lines, source=f"command {name}"), 0, around)
        return around.children


def described(field: dataclasses.Field[Any]) -> list[str]:
    """One option."""
    kind = commandline.kind_of(field)
    takes = "" if kind is None else " " + kind.__name__.upper()
    takes += " ..." if str(field.type).startswith("tuple") else ""
    said = [_sentence(field.metadata["help"])]
    if field.metadata["choices"]:
        said.append("One of " + ", ".join(f"`{one}`" for one in field.metadata["choices"]) + ".")
    if field.metadata["required"]:
        said.append("Required.")
    elif field.default is not False and field.default not in (None, (), ""):  # 0 == False
        said.append(f"Default: `{field.default}`.")
    return entry(f"--{field.name.replace('_', '-')}{takes}", said)


def entry(option: str, said: list[str]) -> list[str]:
    """An option and what is said of it, in reStructuredText."""
    text = " ".join(said).replace("*", r"\*")
    return [f".. option:: {option}", "", f"   {text}", ""]


def _sentence(text: str) -> str:
    """A help text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + "."
