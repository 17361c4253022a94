"""What all pictures share: colours that mean the same everywhere, and how a picture gets out."""

from __future__ import annotations

import io
import re
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

_LINES = ("-", "--", ":", "-.")
_HATCHES = ("", "//", "..", "xx")


class Style(NamedTuple):
    """How one thing looks: the colour says what it is, the form tells it apart without colours."""

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
    "prunetrain": Style(GREEN, "P", trains="everything, channels pruned"),
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
        name = re.sub(r"\W", "_", re.split("[@,]", label)[0].strip().lower())
        name = _ALSO.get(name, name)
        known = METHODS.get(name)
        again = seen[name if known else ""]
        seen[name if known else ""] += 1
        if known is None:
            again, place = divmod(again, len(_OTHERS))
        style = known or _OTHERS[place]
        found[label] = style._replace(
            colour=_darker(style.colour) if again % 2 else style.colour,
            line=_LINES[(_LINES.index(style.line) + again) % len(_LINES)],
            hatch=_HATCHES[(_HATCHES.index(style.hatch) + again) % len(_HATCHES)],
        )
    return found


def picture(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Picture, Any]:
    """A figure of so many inches, and its axes; several are an array and share y."""
    figure = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, sharey=True)


def frame(axes: Any, values: Any, halves: Any) -> None:
    """Set the ends of y by the values, and by their intervals where these are alike.

    An interval of two values may be many times as wide as the others: it is cut.
    """
    middle, half = np.asarray(values, float), np.nan_to_num(np.asarray(halves, float))
    known = half[half > 0]
    room = max(0.25 * float(np.ptp(middle)), 3 * float(known.min() if len(known) else 0))
    half = np.minimum(half, room)
    low, high = (middle - half).min(), (middle + half).max()
    margin = 0.05 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)


def grid(axes: Any) -> None:
    """Pale lines behind what is drawn."""
    axes.grid(color=PALE)
    axes.set_axisbelow(True)


def head(axes: Any, title: str) -> None:
    """Write a title above a picture, in several lines where it is longer than the picture."""
    axes.set_title(title, loc="left", wrap=True)


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


def _darker(colour: str) -> str:
    """Half as bright, of the same hue; black stays black."""
    return "#" + "".join(f"{int(colour[k : k + 2], 16) // 2:02X}" for k in (1, 3, 5))
