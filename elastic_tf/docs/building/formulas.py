"""Formulas as drawings inside the page, set by Matplotlib: no script, no font, no internet."""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from sphinx.application import Sphinx

SIZE = 100.0  # points of an em
FONT = FontProperties(size=SIZE, math_fontfamily="cm")
JOINER = "&#8288;"  # no line ends between a formula and the comma after it
EM = 1.15 / SIZE  # of a formula to that of the text around it
LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer that conf.py asks for."""
    app.add_html_math_renderer("drawn", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(page: Any, node: nodes.math) -> None:
    """A formula within a line."""
    page.body.append(drawn(node.astext()) + JOINER)
    raise nodes.SkipNode


def block(page: Any, node: nodes.math_block) -> None:
    """A formula on a line of its own, which scrolls where the screen is too narrow."""
    page.body.append(f'<div class="formula">{drawn(node.astext())}</div>\n')
    raise nodes.SkipNode


def drawn(formula: str) -> str:
    """An SVG of the formula, in the colour of the text, standing on its line."""
    text = f"${' '.join(formula.split())}$"
    width, height, depth = MathTextParser("path").parse(text, dpi=72, prop=FONT)[:3]
    outline = "".join(
        LETTERS[code] + " ".join(f"{value:.1f}" for value in to) if code in LETTERS else "Z"
        for to, code in TextPath((0, 0), text, prop=FONT).iter_segments(simplify=False)
    )
    return (
        f'<svg class="math" role="img" aria-label="{html.escape(text[1:-1])}" '
        f'viewBox="0 {depth - height:.1f} {width:.1f} {height:.1f}" style="width: '
        f"{width * EM:.3f}em; height: {height * EM:.3f}em; vertical-align: {-depth * EM:.3f}em"
        f'"><path transform="scale(1 -1)" fill="currentColor" d="{outline}"/></svg>'
    )
