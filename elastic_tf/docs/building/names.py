"""What is set as code and names something of the package becomes a link to its reference.

So pages stay plain Markdown that reads well anywhere. Linked are names that can mean one thing
only: with a module before them (`zoo.build`, `et.select_tensors`, `elastic_tf.importance`), methods
with their class (`TimingProfile.step_time`), and alone those of classes, of what `elastic_tf`
itself holds (`select_tensors`), and of functions with an underscore on the page that describes
them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

import elastic_tf
from elastic_tf import baselines, plots

LOGGER = logging.getLogger(__name__)
PACKAGE = re.compile(r"(?:et|elastic_tf)\.(.+)")
NAME = re.compile(r"[A-Za-z_][\w.]*")
ALONE = {"class", "exception", "function"}
LONG = 20  # letters of a name that lines may end in
KEPT = (nodes.reference, nodes.title, addnodes.desc_signature, addnodes.pending_xref)

Target = tuple[str, str]  # page, place on it


def setup(app: Sphinx) -> dict[str, bool]:
    """Link when all pages are read."""
    app.connect("doctree-resolved", polish)
    app.connect("doctree-resolved", link)
    app.connect("html-page-context", let_break)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def polish(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Let wide tables become blocks on small screens; set the dashes that autodoc writes."""
    for table in tree.findall(nodes.table):
        if any(len(code.astext()) > LONG for code in table.findall(nodes.literal)):
            table["classes"].append("stacked")  # on screens where it would be too wide
    for text in list(tree.findall(nodes.Text)):
        if text.startswith(" -- "):  # between a parameter and what is said of it
            text.parent.replace(text, nodes.Text(text.replace("--", "\N{EN DASH}", 1)))


def link(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Make links of what is named in code; warn of what is not there."""
    known = targets(app)
    for code in list(tree.findall(nodes.literal)):
        if any(isinstance(above, KEPT) for above in parents(code)):
            continue
        name = re.sub(r"\(.*\)$", "", code.astext())
        if NAME.fullmatch(name) is None:
            continue
        found = PACKAGE.fullmatch(name)
        target = known.get("elastic_tf." + found[1] if found else name)
        if target is not None and (is_clear(name) or target[0] == page):
            there, place = target
            made = make_refnode(app.builder, page, there, place, [code.deepcopy()])
            code.replace_self(made)
        elif found:
            LOGGER.warning("`%s` is not in the reference", name, location=code)


def is_clear(name: str) -> bool:
    """Whether a name alone says what it means; `achieved_ratio` is a field here, a key there."""
    return "." in name or name[0].isupper() or name in elastic_tf.__all__


def let_break(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Let lines end inside of long names, at their joints."""

    def with_breaks(found: re.Match[str]) -> str:
        return re.sub(r"(?<=\w)(_|\.|/|::)(?=\w)", r"\1<wbr>", found[0])

    if "body" in context:
        long = rf'(?<=<span class="pre">)[^<]{{{LONG},}}'
        context["body"] = re.sub(long, with_breaks, context["body"])


def parents(node: nodes.Node) -> Iterator[nodes.Node]:
    """All nodes around a node."""
    while node.parent is not None:
        node = node.parent
        yield node


@functools.lru_cache(maxsize=1)
def targets(app: Sphinx) -> dict[str, Target]:
    """Name, with `elastic_tf.` or unmistakable without it -> where it is documented."""
    found: dict[str, Target] = {}
    short: dict[str, list[Target]] = {}
    for name, entry in app.env.domaindata["py"]["objects"].items():
        target = (entry.docname, entry.node_id)
        plain = without_package(name)
        found[plain] = target
        *_, owner, last = ["", *plain.split(".")]
        if entry.objtype in ALONE and (last != last.lower() or "_" in last.strip("_")):
            short.setdefault(last, []).append(target)
        elif owner != owner.lower():  # of a class
            short.setdefault(f"{owner}.{last}", []).append(target)
    for module in (elastic_tf, baselines, plots):
        for name in module.__all__:
            home = getattr(getattr(module, name), "__module__", module.__name__)
            here = (without_package(f"{module.__name__}.{name}"), without_package(f"{home}.{name}"))
            for one, other in (here, here[::-1]):
                for plain in [known for known in found if f"{known}.".startswith(f"{one}.")]:
                    found.setdefault(other + plain[len(one) :], found[plain])
    unique = {name: places[0] for name, places in short.items() if len(set(places)) == 1}
    whole = {f"elastic_tf.{name}": place for name, place in found.items()}
    dotted = {name: place for name, place in found.items() if "." in name}
    return {**unique, **dotted, **whole}


def without_package(name: str) -> str:
    """The name as it stands inside elastic_tf."""
    return name.partition(".")[2]
