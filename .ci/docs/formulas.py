"""Formulas as MathML inside the page, by docutils: no script, no font, no internet."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer that conf.py asks for."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(page: Any, node: nodes.math) -> None:
    """A formula within a line."""
    page.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def block(page: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own, which scrolls where the screen is too narrow."""
    page.body.append(f'<div class="formula">{tex2mathml(node.astext())}</div>\n')
    raise nodes.SkipNode
