"""What is set as code and names something of the package becomes a link to its reference.

So pages stay plain Markdown that reads well anywhere. Linked are names that can mean one thing
only: with a module before them (`zoo.build`, `et.select_tensors`, `elastic_tf.importance`), methods
with their class (`TimingProfile.step_time`), and alone those of classes and of functions with an
underscore in it (`select_tensors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

import elastic_tf

LOGGER = logging.getLogger(__name__)
PACKAGE = re.compile(r"(?:et|elastic_tf)\.(.+)")
NAME = re.compile(r"[A-Za-z_][\w.]*")
ALONE = {"class", "exception", "function"}
KEPT = (nodes.reference, nodes.title, addnodes.desc_signature, addnodes.pending_xref)

Target = tuple[str, str]  # page, place on it


def setup(app: Sphinx) -> dict[str, bool]:
    """Link when all pages are read."""
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


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
        target = known.get(found[1] if found else name)
        if target is not None:
            there, place = target
            made = make_refnode(app.builder, page, there, place, [code.deepcopy()])
            code.replace_self(made)
        elif found:
            LOGGER.warning("`%s` is not in the reference", name, location=code)


def parents(node: nodes.Node) -> Iterator[nodes.Node]:
    """All nodes around a node."""
    while node.parent is not None:
        node = node.parent
        yield node


def targets(app: Sphinx) -> dict[str, Target]:
    """Name without the package -> where it is documented; ambiguous short names are left out."""
    found: dict[str, Target] = {}
    short: dict[str, list[Target]] = {}
    for name, entry in app.env.domaindata["py"]["objects"].items():
        target = (entry.docname, entry.node_id)
        plain = name.partition(".")[2]
        found[plain] = target
        *_, owner, last = ["", *plain.split(".")]
        if entry.objtype in ALONE and (last != last.lower() or "_" in last.strip("_")):
            short.setdefault(last, []).append(target)
        elif owner != owner.lower():  # of a class
            short.setdefault(f"{owner}.{last}", []).append(target)
    for name in elastic_tf.__all__:
        for plain in [one for one in found if one.startswith(f"{name}.")]:
            home = getattr(getattr(elastic_tf, name), "__module__", "").partition(".")[2]
            found.setdefault(f"{home}.{plain}", found[plain])
    unique = {name: places[0] for name, places in short.items() if len(set(places)) == 1}
    return {**unique, **found}
