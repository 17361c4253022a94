"""Formulas as drawings inside the page: no script, no font, no internet.

Matplotlib sets them with the fonts that it brings. MathML would be shorter, but browsers without a
font for mathematics set its indices beside their letters.
"""

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
SCALE = 1.15  # of a formula's em to that of the text around it
LETTERS = {
    Path.MOVETO: "M",
    Path.LINETO: "L",
    Path.CURVE3: "Q",
    Path.CURVE4: "C",
    Path.CLOSEPOLY: "Z",
}


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
    formula = " ".join(formula.split())
    text = f"${formula}$"
    size = MathTextParser("path").parse(text, dpi=72, prop=FONT)
    width, height, depth = size[:3]
    outline = "".join(
        LETTERS[code] + " ".join(f"{value:.1f}" for value in ([] if code == Path.CLOSEPOLY else to))
        for to, code in TextPath((0, 0), text, prop=FONT).iter_segments(simplify=False)
    )
    em = SCALE / SIZE
    return (
        f'<svg class="math" role="img" aria-label="{html.escape(formula)}" '
        f'viewBox="0 {depth - height:.1f} {width:.1f} {height:.1f}" '
        f'style="width: {width * em:.3f}em; height: {height * em:.3f}em; '
        f'vertical-align: {-depth * em:.3f}em">'
        f'<path transform="scale(1 -1)" fill="currentColor" d="{outline}"/></svg>'
    )
