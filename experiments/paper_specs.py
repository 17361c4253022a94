"""The runs behind each figure and table of the paper, as data.

Models and data sets go by the paper's names here; `paper_scales` says what stands for them at a
scale. Runs that several figures need are the same run.

Source: Huang et al., ElasticTrainer, MobiSys 2023, Figures 2 to 23, Tables 1 and 2.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from elastic_tf.methods import baselines

RESNET, VGG, MOBILENET_V2, VIT = "resnet50", "vgg16", "mobilenet_v2", "vit_b16"
MODELS = (RESNET, VGG, MOBILENET_V2, VIT)
CUB, PET, DOGS = "cub", "pet", "dogs"
DATA = {CUB: "CUB-200", PET: "Oxford-IIIT Pet", DOGS: "Stanford Dogs"}
LABELS = {
    "full": "Full Training",
    "traditional_tl": "Traditional TL",
    "bn_bias": "BN+Bias",
    "prunetrain": "PruneTrain",
    "elastictrainer": "ElasticTrainer",
    "elastic_weight": "Weight",
    "elastic_grad": "Grad.",
    "elastic": "last tensors",
    "offline_optimal": "Offline optimal",
}


def source(method: str) -> str:
    """A method as the command `train` takes it: those of other papers stand beside this file."""
    related = Path(__file__).parent / "related"
    return method if method in baselines.NAMES else f"{related}:{method}"


@dataclasses.dataclass(frozen=True)
class Training:
    """One training; what is None is the scale's or the method's own."""

    model: str  # of `MODELS`
    data: str  # of `DATA`
    method: str  # of `baselines.NAMES`, or of `related`
    rho: float | None = None
    epochs: int | None = None
    is_beginning: bool = False  # the rate stays where it starts: only first epochs are looked at

    @property
    def name(self) -> str:
        """Of its directory: equal for equal trainings."""
        parts = [self.method]
        for letter, value in (("@", self.rho), ("_e", self.epochs)):
            parts += [] if value is None else [f"{letter}{value:g}"]
        return f"{self.data}/{self.model}/{''.join(parts)}{'_beginning' * self.is_beginning}"

    @property
    def label(self) -> str:
        """In a legend."""
        share = "" if self.rho is None else f", rho={self.rho:g}"
        return LABELS[self.method] + share


@dataclasses.dataclass(frozen=True)
class Picture:
    """One figure or table, drawn from trainings."""

    title: str
    form: str  # how it is drawn, a name in `figure_forms.FORMS`
    trainings: tuple[Training, ...]


def schemes(
    model: str, data: str, rho: float, *, epochs: int | None = None
) -> tuple[Training, ...]:
    """ElasticTrainer and the four methods that the paper compares it with."""
    methods = ("full", "traditional_tl", "bn_bias", "prunetrain")
    others = (Training(model, data, method, epochs=epochs) for method in methods)
    return (*others, Training(model, data, "elastictrainer", rho, epochs=epochs))


def metrics(data: str) -> tuple[Training, ...]:
    """The metrics of importance."""
    methods = ("elastictrainer", "elastic_weight", "elastic_grad")
    return tuple(Training(RESNET, data, method, 0.5) for method in methods)


_FIRST = {"epochs": 3, "is_beginning": True}
# 2(a): bottom layers as they fit into so much of the time; 2(b): an objective of 1.7x.
_LAST_LAYERS = (
    *(Training(RESNET, CUB, "elastic", rho, **_FIRST) for rho in (0.45, 0.5, 0.6, 0.8)),
    Training(RESNET, CUB, "full", **_FIRST),
)
_SUBOPTIMAL = tuple(
    Training(RESNET, CUB, method, rho, epochs=6, is_beginning=True)
    for method, rho in (("offline_optimal", 0.59), ("elastic", 0.59), ("bn_bias", None))
)
_RHOS = (0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)
_BY_RHO = (
    *schemes(RESNET, CUB, 0.5)[:-1],
    *(Training(RESNET, CUB, "elastictrainer", r) for r in _RHOS),
)
# Small models get extra epochs until they converge (Sec. 8.3).
_BY_MODEL = (
    *schemes(RESNET, CUB, 0.4),
    *schemes(VGG, CUB, 0.4),
    *schemes(MOBILENET_V2, CUB, 0.4, epochs=24),
    *schemes(VIT, CUB, 0.4),
)


def _over_time(number: int, data: tuple[str, ...]) -> dict[str, Picture]:
    words = {"accuracy": "Testing accuracy", "loss": "Training loss"}
    shown = [
        Picture(f"{words[m]} on {DATA[d]}", f"{m}_over_time", schemes(RESNET, d, 0.5))
        for m in words
        for d in data
    ]
    return {f"{number}{letter}": picture for letter, picture in zip("abcdef", shown)}


_TIME_BY_RHO = Picture("Training time on CUB-200 by rho", "time_bars", _BY_RHO)
_ACCURACY_BY_MODEL = Picture("Accuracy of models on CUB-200", "model_accuracy", _BY_MODEL)
_TIME_BY_MODEL = Picture("Training time of models on CUB-200", "model_time", _BY_MODEL)
_MEMORY = Picture("Peak memory", "memory_bars", schemes(RESNET, CUB, 0.5))


def _selected(model: str, data: str, rho: float) -> Picture:
    title = f"Selected tensors of {model} on {DATA[data]}, rho={rho:g}"
    return Picture(title, "selection_map", (Training(model, data, "elastictrainer", rho),))


# The panels of a figure that shows two devices are the same runs on each of them.
FIGURES: dict[str, Picture] = {
    "2a": Picture("The first 3 epochs of the last layers", "accuracy_over_time", _LAST_LAYERS),
    "2b": Picture("Suboptimal choices of what to train", "accuracy_by_epoch", _SUBOPTIMAL),
    **_over_time(15, (CUB, PET, DOGS)),
    **_over_time(16, (CUB, PET)),
    "17a": _TIME_BY_RHO,
    "17c": _TIME_BY_RHO,
    "19a": _ACCURACY_BY_MODEL,
    "19b": _TIME_BY_MODEL,
    "19c": _ACCURACY_BY_MODEL,
    "19d": _TIME_BY_MODEL,
    "20a": Picture("Metrics of importance on CUB-200", "accuracy_by_epoch", metrics(CUB)),
    "20b": Picture("Metrics of importance on Pet", "accuracy_by_epoch", metrics(PET)),
    "21a": _selected(RESNET, CUB, 0.7),
    "21b": _selected(RESNET, CUB, 0.5),
    "21c": _selected(RESNET, PET, 0.7),
    "21d": _selected(VGG, PET, 0.7),
    "22a": _MEMORY,
    "22b": _MEMORY,
}
TABLES: dict[str, Picture] = {
    "2": Picture(
        "Speedup against the best baseline by accuracy",
        "speedup_table",
        tuple(one for data in DATA for one in schemes(RESNET, data, 0.5)),
    ),
}
# Table 2's own, for the paper's data sets.
TARGETS = {CUB: (0.60, 0.64, 0.68), PET: (0.85, 0.87, 0.89), DOGS: (0.77, 0.78, 0.79)}


def pictures(figure: str = "", table: str = "") -> dict[str, Picture]:
    """Figures of a name, "15a" or all of "15", or a table; everything if neither is given.

    Raises:
        ValueError: an unknown name.
    """
    found = {}
    for kind, wanted, group in (("figure", figure, FIGURES), ("table", table, TABLES)):
        for name, one in group.items():
            if wanted in (name, name.rstrip("abcdef")) or not (figure or table):
                found[f"{kind} {name}"] = one
        if wanted and not found:
            raise ValueError(
                f"The paper's {kind}s are {', '.join(group)}. Received: --{kind} {wanted}."
            )
    return found
