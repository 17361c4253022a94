"""What all pictures share: colours that mean the same everywhere, and how a picture gets out."""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe & Ito, Color Universal Design, 2008.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILLION, SKY, YELLOW = "#D55E00", "#56B4E9", "#F0E442"
BLACK, DARK, GREY, PALE = "#000000", "#767676", "#B8B8B8", "#EDEDED"

MODES = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY)  # exact, then others by their code
_LINES = ("-", "--", ":", "-.")
_LETTERS = 11.0  # of a title, in an inch
_MOST_TICKS = 12  # along an axis
_HATCHES = ("", "//", "..", "xx")


class Style(NamedTuple):
    """How one thing looks: the colour says what it is, the form replaces colour in print."""

    colour: str
    marker: str
    line: str = "-"
    hatch: str = ""
    trains: str = ""  # what a method trains, for legends


# Blue is elastic and orange is full training, in every picture; variants of a method share its
# hue, every second one darker, and differ in form.
METHODS = {
    "elastic": Style(BLUE, "o", trains="the last tensors within rho"),
    "elastic_loss": Style(BLUE, "<", "-.", "xx", trains="what is worth most within rho"),
    "elastic_weight": Style(BLUE, "d", "--", "//", "the largest weights within rho"),
    "elastic_grad": Style(BLUE, ">", ":", "..", "the largest gradients within rho"),
    "full": Style(ORANGE, "s", trains="everything"),
    "traditional_tl": Style(SKY, "D", trains="the head"),
    "bn_bias": Style(PURPLE, "^", trains="head, biases, normalisation"),
    "tinytl": Style(VERMILLION, "v", trains="head, biases, lite residuals"),
    "prunetrain": Style(GREEN, "P", trains="everything, group lasso"),
    "random": Style(DARK, "X", trains="a random choice within rho"),
    "elastictrainer": Style(BLUE, "*", ":", "xx", "as in the paper, within rho"),
    "offline_optimal": Style(BLACK, "*", trains="what is worth most at the start"),
}
# Names in the paper, and of plain Keras.
_ALSO = {"full_training": "full", "plain_keras": "full", "last_tensors": "elastic"}
# What is no method: without the two colours of elastic and full training.
_OTHERS = tuple(map(Style, (GREEN, PURPLE, VERMILLION, SKY, BLACK, YELLOW, DARK), "osD^vPX"))


class Picture(Figure):
    """A figure that a notebook shows as it is."""

    def _repr_png_(self) -> bytes:
        return png(self)


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """The look of each label: methods ("elastic@0.5", "full") have theirs, others take turns.

    One method at several settings differs in lines and hatches; every second one is darker.
    """
    found: dict[str, Style] = {}
    seen: Counter[str] = Counter()
    for label in dict.fromkeys(labels):
        # the method that it names, without its settings: "elastic@0.5" is "elastic"
        name = re.sub(r"\W", "_", re.split("[@,]", label)[0].strip().lower())
        name = _ALSO.get(name, name)
        name = name if name in METHODS else ""
        again, place = (seen[name], 0) if name else divmod(seen[name], len(_OTHERS))
        seen[name] += 1
        style = METHODS[name] if name else _OTHERS[place]
        red, green, blue = (int(style.colour[k : k + 2], 16) >> again % 2 for k in (1, 3, 5))
        found[label] = style._replace(
            colour=f"#{red:02X}{green:02X}{blue:02X}",
            line=_LINES[(_LINES.index(style.line) + again) % len(_LINES)],
            hatch=_HATCHES[(_HATCHES.index(style.hatch) + again) % len(_HATCHES)],
        )
    return found


def picture(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Picture, Any]:
    """A figure of so many inches, and its axes; several are an array."""
    figure = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def grid(axes: Any) -> None:
    """Pale lines behind what is drawn."""
    axes.grid(color=PALE)
    axes.set_axisbelow(True)


def head(axes: Any, title: str) -> None:
    """Write above a picture what it shows, and above its y axis the label.

    What is longer than the picture takes several lines.
    """
    axes.yaxis.label.set(rotation=0, ha="left", va="bottom", fontsize=9, color=DARK)
    axes.yaxis.set_label_coords(0.0, 1.01)
    inches = axes.figure.get_figwidth() / axes.get_gridspec().ncols
    text = textwrap.fill(title, int(_LETTERS * inches))
    # a blank keeps the place of a title that there is not, for the label
    axes.set_title(text or " ", loc="left", fontsize=11, pad=20 if axes.get_ylabel() else 6)


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture; the file's ending says which kind."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def png(figure: Figure) -> bytes:
    """A picture as the bytes of a PNG file, of a size for screens."""
    from PIL import Image

    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    # a palette is enough for what is drawn here, and takes a third of the bytes
    Image.open(drawn).convert("RGB").quantize().save(packed, "PNG", optimize=True)
    return packed.getvalue()


def few(count: int) -> np.ndarray:
    """Places of a few of `count`, from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_TICKS)).round().astype(int))
