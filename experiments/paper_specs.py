"""The runs behind each figure and table of the paper, and their options, as data.

Models and data sets go by the paper's names; a `Scale` says what stands for them. Runs that several
figures need are the same run.

Source: Huang et al., ElasticTrainer, MobiSys 2023, Figures 2 to 23, Tables 1 and 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain_digits import WEIGHTS

from elastic_tf.methods import baselines

RESNET, VGG, MOBILENET_V2, VIT = "resnet50", "vgg16", "mobilenet_v2", "vit_b16"
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


@dataclasses.dataclass(frozen=True)
class Training:
    """One training; what is None is the scale's or the method's own."""

    model: str
    data: str  # of `DATA`
    method: str  # of `LABELS`
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
        return LABELS[self.method] + ("" if self.rho is None else f", rho={self.rho:g}")


@dataclasses.dataclass(frozen=True)
class Picture:
    """One figure or table, drawn from trainings."""

    title: str
    form: str  # how it is drawn, a name in `figure_forms.FORMS`
    trainings: tuple[Training, ...]


def schemes(
    data: str, rho: float = 0.5, model: str = RESNET, epochs: int | None = None
) -> tuple[Training, ...]:
    """ElasticTrainer and the four methods that the paper compares it with."""
    methods = ("full", "traditional_tl", "bn_bias", "prunetrain")
    others = (Training(model, data, method, epochs=epochs) for method in methods)
    return (*others, Training(model, data, "elastictrainer", rho, epochs))


def by_metric(data: str) -> Picture:
    """What ranks the tensors."""
    methods = ("elastictrainer", "elastic_weight", "elastic_grad")
    trainings = tuple(Training(RESNET, data, method, 0.5) for method in methods)
    return Picture(f"Metrics of importance on {DATA[data]}", "accuracy_by_epoch", trainings)


def selected(model: str, data: str, rho: float) -> Picture:
    """What was trained when."""
    title = f"Selected tensors of {model} on {DATA[data]}, rho={rho:g}"
    return Picture(title, "selection_map", (Training(model, data, "elastictrainer", rho),))


# 2(a): bottom layers as they fit into so much of the time; 2(b): an objective of 1.7x.
_LAST_LAYERS = tuple(
    Training(RESNET, CUB, method, rho, epochs=3, is_beginning=True)
    for method, rho in (*(("elastic", rho) for rho in (0.45, 0.5, 0.6, 0.8)), ("full", None))
)
_SUBOPTIMAL = tuple(
    Training(RESNET, CUB, method, rho, epochs=6, is_beginning=True)
    for method, rho in (("offline_optimal", 0.59), ("elastic", 0.59), ("bn_bias", None))
)
_BY_RHO = (
    *schemes(CUB)[:-1],
    *(
        Training(RESNET, CUB, "elastictrainer", rho)
        for rho in (0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)
    ),
)
# Small models get extra epochs until they converge (Sec. 8.3).
_BY_MODEL = tuple(
    one
    for model, epochs in ((RESNET, None), (VGG, None), (MOBILENET_V2, 24), (VIT, None))
    for one in schemes(CUB, 0.4, model, epochs)
)
# A figure of the second device (16, 17c, 19c, 19d, 22b) is the one of the first, run there.
FIGURES: dict[str, Picture] = {
    "2a": Picture("The first 3 epochs of the last layers", "accuracy_over_time", _LAST_LAYERS),
    "2b": Picture("Suboptimal choices of what to train", "accuracy_by_epoch", _SUBOPTIMAL),
    **{
        f"15{letter}": Picture(f"Testing accuracy on {name}", "accuracy_over_time", schemes(data))
        for letter, (data, name) in zip("abc", DATA.items())
    },
    **{
        f"15{letter}": Picture(f"Training loss on {name}", "loss_over_time", schemes(data))
        for letter, (data, name) in zip("def", DATA.items())
    },
    "17a": Picture("Training time on CUB-200 by rho", "time_bars", _BY_RHO),
    "19a": Picture("Accuracy of models on CUB-200", "model_accuracy", _BY_MODEL),
    "19b": Picture("Training time of models on CUB-200", "model_time", _BY_MODEL),
    "20a": by_metric(CUB),
    "20b": by_metric(PET),
    "21a": selected(RESNET, CUB, 0.7),
    "21b": selected(RESNET, CUB, 0.5),
    "21c": selected(RESNET, PET, 0.7),
    "21d": selected(VGG, PET, 0.7),
    "22a": Picture("Peak memory", "memory_bars", schemes(CUB)),
}
_OF_ALL = tuple(one for data in DATA for one in schemes(data))
TABLES = {"2": Picture("Speedup against the best baseline by accuracy", "speedup_table", _OF_ALL)}
# Table 2's own, for the paper's data sets.
TARGETS = {CUB: (0.60, 0.64, 0.68), PET: (0.85, 0.87, 0.89), DOGS: (0.77, 0.78, 0.79)}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Options of a training for everything that the specs name.

    Attributes:
        common: of every training.
        models: by the paper's name; a model that nothing stands for is left out.
        data: likewise, and the number of classes.
        smallest_rho: that the models can keep to; the paper's smaller ones become it.
        most_epochs: likewise.
        stands_for: said in the titles where models and data are not the paper's own.
    """

    common: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, tuple[str, int]]
    smallest_rho: float = 0.0
    most_epochs: int = 24
    stands_for: str = ""

    def titled(self, picture: Picture) -> Picture:
        """The picture with what stands for the paper's models and data in its title."""
        return dataclasses.replace(picture, title=f"{picture.title}\n{self.stands_for}".rstrip())

    def trainings(self, picture: Picture) -> list[Training]:
        """Those of a picture, as they are at this scale; without models that nothing stands for."""
        least, found = self.smallest_rho, [t for t in picture.trainings if t.model in self.models]
        kept = (
            t if t.rho is None else dataclasses.replace(t, rho=max(t.rho, least)) for t in found
        )
        return list(dict.fromkeys(kept))

    def options(self, training: Training) -> dict[str, Any]:
        """Options of the command `train`; methods of other papers stand beside this file."""
        options = {**self.common, "data": self.data[training.data][0], "method": training.method}
        if training.method not in baselines.NAMES:
            options["method"] = f"{Path(__file__).parent / 'related'}:{training.method}"
        options |= self.models[training.model]
        if training.epochs is not None:
            options["epochs"] = min(training.epochs, self.most_epochs)
        if training.is_beginning:
            options["schedule"] = "constant"
        return options if training.rho is None else {**options, "rho": training.rho}


def paper(vit_weights: Path | None) -> Scale:
    """The setting of the paper (Sec. 8); Keras has no weights for ViT-B/16."""
    return Scale(
        common={
            "input_size": 224,
            "batch_size": 4,
            "epochs": 12,
            "optimizer": "sgdw",
            "learning_rate": 1e-4,
            "schedule": "cosine",
            "weights": "imagenet",
            "validation": 0.0,  # the curves are those of the test images
            "augment": ("flip",),
            "interval": 3,
        },
        models={
            **{name: {"model": name} for name in (RESNET, VGG, MOBILENET_V2)},
            VIT: {
                "model": VIT,
                "weights": vit_weights,
                "optimizer": "adam",
                "schedule": "constant",
            },
        },
        data={
            CUB: ("tfds:caltech_birds2011", 200),
            PET: ("tfds:oxford_iiit_pet", 37),
            DOGS: ("tfds:stanford_dogs", 120),
        },
    )


def small() -> Scale:
    """Everything within minutes: on handwritten digits, which need no download."""
    network = {"model": "digits_resnet", "weights": WEIGHTS}
    return Scale(
        common={
            "input_size": 32,
            "batch_size": 32,
            "epochs": 4,
            "optimizer": "adam",
            "learning_rate": 1e-3,
            "schedule": "cosine",
            "validation": 0.0,
            "interval": 1,
        },
        models=dict.fromkeys((RESNET, VGG, MOBILENET_V2), network),
        data={
            CUB: ("digits:shifted", 10),
            PET: ("digits:turned", 10),
            DOGS: ("digits:inverted", 10),
        },
        smallest_rho=0.4,
        most_epochs=4,
        stands_for="by a small ResNet on digits",
    )


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
