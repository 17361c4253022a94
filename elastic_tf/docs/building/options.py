"""The options of a command, from the dataclass that its command line is made of."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, get_args, get_origin, get_type_hints

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


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
        hints = get_type_hints(module.Settings)
        for field in dataclasses.fields(module.Settings):
            lines += described(field, hints[field.name])
        for one in getattr(module, "ALONE", ()):
            values = f"[{one.values[0]}]" if one.is_optional else " ".join(one.values)
            lines += entry(f"{one.name} {values}", [_sentence(one.help), "Stands alone."])
        around = nodes.container()
        around.document = self.state.document
        self.state.nested_parse(StringList(lines, source=f"command {name}"), 0, around)
        return around.children


def described(field: dataclasses.Field[Any], hint: Any) -> list[str]:
    """One option."""
    kinds = [kind for kind in get_args(hint) if kind not in (type(None), Ellipsis)]
    kind = kinds[0] if kinds else hint
    takes = "" if hint is bool else " " + kind.__name__.upper()
    takes += " ..." if get_origin(hint) is tuple else ""
    said = [_sentence(field.metadata["help"])]
    if field.metadata["choices"]:
        said.append("One of " + ", ".join(f"`{one}`" for one in field.metadata["choices"]) + ".")
    if field.default is dataclasses.MISSING:
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
