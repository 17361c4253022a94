"""What stands for the paper's models and data sets: themselves, or what is small and at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measuring import ASSETS
from paper_specs import (
    CUB,
    DATA,
    DOGS,
    MOBILENET_V2,
    MODELS,
    PET,
    RESNET,
    VGG,
    VIT,
    Picture,
    Training,
    source,
)
from pretrain_digits import WEIGHTS as DIGITS_WEIGHTS

_WEIGHTS, _DATA = ASSETS / "weights", ASSETS / "data"
NAMES = ("small", "paper")


@dataclasses.dataclass(frozen=True)
class Scale:
    """Options of a training for everything that the specs name.

    Attributes:
        common: of every training.
        models: by the paper's name; a model that nothing stands for is left out.
        data: likewise.
        classes: of the data sets.
        images: in the training part of each.
        timed: zoo model and image size of models whose steps alone are timed.
        rates: learning rates by method, where they differ.
        smallest_rho: that the models can keep to; the paper's smaller ones become it.
        most_epochs: of a training.
        names: what stands for models and data sets that are not the paper's own.
    """

    common: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, str]
    classes: Mapping[str, int]
    images: Mapping[str, int]
    timed: Mapping[str, tuple[str, int]]
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    smallest_rho: float = 0.0
    most_epochs: int = 100
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def titled(self, picture: Picture) -> Picture:
        """The picture with what stands for the paper's models and data in its title."""
        trainings = self.trainings(picture)
        used = dict.fromkeys([t.model for t in trainings] + [t.data for t in trainings])
        said = [f"{self.names[one]} for {one}" for one in used if one in self.names]
        title = "\n".join([picture.title, *([", ".join(said)] if said else [])])
        return dataclasses.replace(picture, title=title)

    def trainings(self, picture: Picture) -> list[Training]:
        """Those of a picture, as they are at this scale; without models that nothing stands for."""
        found = [
            training
            if training.rho is None
            else dataclasses.replace(training, rho=max(training.rho, self.smallest_rho))
            for training in picture.trainings
            if training.model in self.models
        ]
        return list(dict.fromkeys(found))

    def options(self, training: Training) -> dict[str, Any]:
        """Options of train.py for a training, without its directory."""
        options = {
            **self.common,
            "data": self.data[training.data],
            "method": source(training.method),
            **self.models[training.model],
        }
        if training.method in self.rates:
            options["learning_rate"] = self.rates[training.method]
        if training.epochs is not None:
            options["epochs"] = min(training.epochs, self.most_epochs)
        if training.is_beginning:
            options["schedule"] = "constant"
        own = {name: getattr(training, name) for name in ("rho", "interval", "probe_size")}
        return {**options, **{name: value for name, value in own.items() if value is not None}}


def paper(vit_weights: Path | None) -> Scale:
    """The setting of the paper (Sec. 8).

    Args:
        vit_weights: file of weights for ViT-B/16, for which Keras has none.
    """
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
            "flip": True,
            "interval": 3,
        },
        models={
            RESNET: {"model": "resnet50"},
            VGG: {"model": "vgg16"},
            MOBILENET_V2: {"model": "mobilenet_v2"},
            VIT: {
                "model": "vit_b16",
                "weights": vit_weights,
                "optimizer": "adam",
                "schedule": "constant",
            },
        },
        data={
            CUB: "tfds:caltech_birds2011",
            PET: "tfds:oxford_iiit_pet",
            DOGS: "tfds:stanford_dogs",
        },
        classes={CUB: 200, PET: 37, DOGS: 120},
        images={CUB: 5994, PET: 3680, DOGS: 12000},
        timed={name: (name, 224) for name in MODELS},
    )


# The rates at which each method did best on the birds; those of the digits suit them all.
_SMALL: dict[str, Any] = {
    "batch_size": 8,
    "epochs": 4,
    "optimizer": "adam",
    "schedule": "cosine",
    "validation": 0.0,
    "interval": 1,
}


_SMALL_TIMED = {
    **{name: (name, 64) for name in (RESNET, VGG, MOBILENET_V2)},
    VIT: ("vit_ti16", 64),
}


def small() -> Scale:
    """Everything within minutes: on photographs with MobileNets, or on handwritten digits."""
    birds, flowers = _DATA / "cub_birds40", _DATA / "flowers5"
    mobilenet = _WEIGHTS / "mobilenet_0.75_224_no_top.weights.h5"
    narrow = _WEIGHTS / "mobilenet_v2_0.5_224_no_top.weights.h5"
    wide = _WEIGHTS / "mobilenet_v2_1.0_224_qat_dequant_no_top.weights.h5"
    if not all(path.exists() for path in (birds, flowers, mobilenet, narrow, wide)):
        return digits()
    return Scale(
        common={**_SMALL, "input_size": 96, "learning_rate": 5e-5, "flip": True},
        models={
            RESNET: {"model": "mobilenet", "alpha": 0.75, "weights": mobilenet},
            VGG: {"model": "mobilenet_v2", "weights": wide},
            MOBILENET_V2: {"model": "mobilenet_v2", "alpha": 0.5, "weights": narrow},
        },
        data={CUB: str(birds), PET: str(flowers), DOGS: "digits:shifted"},
        classes={CUB: 40, PET: 5, DOGS: 10},
        images={CUB: 1199, PET: 500, DOGS: 1257},
        timed=_SMALL_TIMED,
        rates={"full": 3e-5, "bn_bias": 1e-4, "traditional_tl": 1e-4},
        smallest_rho=0.4,
        most_epochs=_SMALL["epochs"],
        names={
            RESNET: "MobileNet 0.75",
            VGG: "MobileNetV2",
            MOBILENET_V2: "MobileNetV2 0.5",
            CUB: "40 birds",
            PET: "5 flowers",
            DOGS: "shifted digits",
        },
    )


def digits() -> Scale:
    """On handwritten digits, which need no download."""
    network, models = {"model": "digits_resnet", "weights": DIGITS_WEIGHTS}, MODELS[:3]
    return Scale(
        common={**_SMALL, "input_size": 32, "batch_size": 32, "learning_rate": 1e-3},
        models=dict.fromkeys(models, network),
        data={CUB: "digits:shifted", PET: "digits:turned", DOGS: "digits:inverted"},
        classes=dict.fromkeys(DATA, 10),
        images=dict.fromkeys(DATA, 1257),
        timed=_SMALL_TIMED,
        smallest_rho=0.4,
        most_epochs=_SMALL["epochs"],
        names={
            **dict.fromkeys(models, "a small ResNet"),
            CUB: "shifted digits",
            PET: "turned digits",
            DOGS: "inverted digits",
        },
    )
