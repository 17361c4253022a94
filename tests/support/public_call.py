"""What is common to the calls of public functions: see `test_public_functions`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_values as kinds
import numpy as np
import tensorflow as tf
from networks import crossentropy, images, mask_of, network

from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile

N = 10  # tensors of the network
PATHS = {"path": kinds.path}
DATA = {"x": kinds.samples, "y": kinds.samples, "sample_weight": kinds.samples}
PARTS = ("samples", "batch", "loss", "model")  # what a message calls the data
SPOKEN = {name: PARTS for name in ("x", "y", "sample_weight", "data", "gradient_data")}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that is right.

    Attributes:
        name: module and function.
        function: what is called.
        given: makes the arguments, in a directory of its own.
        kinds: of the arguments that are replaced, by name.
        also: words under which a message may speak of an argument.
        holds: what is true of every result.
        runs: whether a call that is accepted takes long: values made at random are left out.
    """

    name: str
    function: Callable[..., Any]
    given: Callable[[Path], dict[str, Any]]
    kinds: dict[str, kinds.Kind]
    also: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    holds: Callable[[Any], bool] = lambda result: True
    runs: bool = False


@functools.cache
def model() -> ElasticModel:
    made = ElasticModel.from_model(network())
    made.compile(tf.keras.optimizers.SGD(0.05, momentum=0.9), crossentropy())
    x, y = batch()
    made.train_on_batch(x, y)
    return made


def batch() -> tuple[np.ndarray, np.ndarray]:
    x, y = images()
    return x[:4], y[:4]


def table() -> TimingProfile:
    return TimingProfile.from_chain(t_dw=np.ones(N), t_dy=np.ones(N), t_forward=5.0)


def worth() -> np.ndarray:
    return np.linspace(-1.0, 3.0, N)


def head() -> np.ndarray:
    return mask_of(model(), "head")


def probed() -> dict[str, Any]:
    x, y = batch()
    return {"model": model(), "x": x, "y": y, "sample_weight": np.ones(4, np.float32)}


def is_worth(found: Any) -> bool:
    return found.dtype == np.float64 and found.shape == (N,) and bool(np.isfinite(found).all())


def is_mask(found: Any) -> bool:
    return found.dtype == bool and found.ndim == 1


def is_share(found: Any) -> bool:
    return 0.0 < found <= 1.0


def is_number(found: Any) -> bool:
    return bool(np.isfinite(found))
