"""What stands for the paper's models and data sets: themselves, or what is small and at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper_specs import CUB, DATA, DOGS, MODELS, PET, VIT, Picture, Training, source
from pretrain_digits import WEIGHTS

NAMES = ("small", "paper")


@dataclasses.dataclass(frozen=True)
class Scale:
    """Options of a training for everything that the specs name.

    Attributes:
        common: of every training.
        models: by the paper's name; a model that nothing stands for is left out.
        data: likewise.
        classes: of the data sets.
        smallest_rho: that the models can keep to; the paper's smaller ones become it.
        names: what stands for models and data sets that are not the paper's own.
    """

    common: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, str]
    classes: Mapping[str, int]
    smallest_rho: float = 0.0
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def titled(self, picture: Picture) -> Picture:
        """The picture with what stands for the paper's models and data in its title."""
        used = dict.fromkeys(x for t in self.trainings(picture) for x in (t.model, t.data))
        said = ", ".join(f"{self.names[one]} for {one}" for one in used if one in self.names)
        return dataclasses.replace(picture, title=f"{picture.title}\n{said}".rstrip())

    def trainings(self, picture: Picture) -> list[Training]:
        """Those of a picture, as they are at this scale; without models that nothing stands for."""
        found = [one for one in picture.trainings if one.model in self.models]
        least = self.smallest_rho
        return list(
            dict.fromkeys(
                one if one.rho is None else dataclasses.replace(one, rho=max(one.rho, least))
                for one in found
            )
        )

    def options(self, training: Training) -> dict[str, Any]:
        """Options of train.py for a training, without its directory."""
        options = {
            **self.common,
            "data": self.data[training.data],
            "method": source(training.method),
            **self.models[training.model],
        }
        if training.epochs is not None:  # extra epochs are for the paper's own scale
            most = options["epochs"] if self.names else training.epochs
            options["epochs"] = min(training.epochs, most)
        if training.is_beginning:
            options["schedule"] = "constant"
        return options if training.rho is None else {**options, "rho": training.rho}


def paper(vit_weights: Path | None) -> Scale:
    """The setting of the paper (Sec. 8).

    Args:
        vit_weights: file of weights for ViT-B/16, for which Keras has none.
    """
    vit = {"weights": vit_weights, "optimizer": "adam", "schedule": "constant"}
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
        models={name: {"model": name, **(vit if name == VIT else {})} for name in MODELS},
        data={
            CUB: "tfds:caltech_birds2011",
            PET: "tfds:oxford_iiit_pet",
            DOGS: "tfds:stanford_dogs",
        },
        classes={CUB: 200, PET: 37, DOGS: 120},
    )


def small() -> Scale:
    """Everything within minutes: on handwritten digits, which need no download."""
    models = [name for name in MODELS if name != VIT]
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
        models=dict.fromkeys(models, {"model": "digits_resnet", "weights": WEIGHTS}),
        data={CUB: "digits:shifted", PET: "digits:turned", DOGS: "digits:inverted"},
        classes=dict.fromkeys(DATA, 10),
        smallest_rho=0.4,
        names={
            **dict.fromkeys(models, "a small ResNet"),
            CUB: "shifted digits",
            PET: "turned digits",
            DOGS: "inverted digits",
        },
    )
