"""Formulas as MathML, which browsers set by themselves: no script, no font, no internet."""

from __future__ import annotations

from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer that conf.py asks for."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(page: Any, node: nodes.math) -> None:
    """A formula within a line."""
    page.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def block(page: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own, which scrolls where the screen is too narrow."""
    formula = latex2mathml.converter.convert(node.astext(), display="block")
    page.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode
