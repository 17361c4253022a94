"""What training a mask for an epoch really wins, to judge importance by.

A case is a pre-trained model, new data and an optimizer. Its states are moments of a training from
which each mask is tried: the start, with empty slots, and one epoch of full training later.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from pretrain_digits import WEIGHTS

import elastic_tf as et
from elastic_tf.app.commands import harness

# Pre-trained weights and photographs, where there are any.
ASSETS = Path(
    os.environ.get("ELASTIC_TF_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets")
)
MOBILENET_WEIGHTS = ASSETS / "weights" / "mobilenet_0.75_224_no_top.weights.h5"
BIRDS = ASSETS / "data" / "cub_birds40"
BIRD_PIXELS, BIRD_IMAGES, BIRD_TEST_IMAGES = 96, 320, 240
DIGIT_IMAGES = 640

RHO = 0.5
# A mask must use this share of the time allowed.
_USED = 0.98


class Samples(NamedTuple):
    x: np.ndarray
    y: np.ndarray

    def rows(self, index: Any) -> Samples:
        return Samples(self.x[index], self.y[index])


@dataclasses.dataclass(frozen=True)
class Case:
    """One model and its new data."""

    name: str
    build: Callable[[], tf.keras.Model]
    train: Samples  # whole batches
    held_out: Samples  # what nothing is trained on
    batch_size: int
    optimizer: str
    learning_rate: float  # constant
    warm_head: int = 0  # epochs that train the head alone before the start
    seeds: tuple[int, ...] = (0, 1)  # of order and draws; a start and a later state for each
    masks: int = 20  # number tried


class State(NamedTuple):
    """A moment of a training: all variables, and the samples in the order of the next epoch."""

    name: str
    values: list[np.ndarray]
    epoch: Samples
    probe: Samples


def cases() -> Iterator[Case]:
    """Digits with Adam and with momentum; birds with Adam where there are photographs."""
    train, test = et.data.digits(image_size=32, shift=harness.DOMAINS["digits:shifted"])
    digits = Case(
        name="digits, Adam",
        build=lambda: et.zoo.build("digits_resnet", classes=10, input_size=32, weights=WEIGHTS),
        train=Samples(train[0].astype(np.float32), train[1]).rows(slice(DIGIT_IMAGES)),
        held_out=Samples(test[0].astype(np.float32), test[1]),
        batch_size=32,
        optimizer="adam",
        learning_rate=1e-3,
    )
    yield digits
    yield dataclasses.replace(digits, name="digits, momentum", optimizer="sgd", learning_rate=3e-3)
    if not MOBILENET_WEIGHTS.is_file() or not BIRDS.is_dir():
        print(f"No birds: no MobileNet weights or photographs in {ASSETS}.")
        return
    data = et.data.image_folder(BIRDS, image_size=BIRD_PIXELS, batch_size=8)
    options = {"classes": data.classes, "input_size": BIRD_PIXELS, "alpha": 0.75}
    options["weights"] = MOBILENET_WEIGHTS
    yield Case(
        name="birds, Adam",
        build=lambda: et.zoo.build("mobilenet", **options),
        train=_first(data.train, BIRD_IMAGES),
        held_out=_first(data.test.unbatch().shuffle(2000, seed=0).batch(8), BIRD_TEST_IMAGES),
        batch_size=8,
        optimizer="adam",
        learning_rate=3e-5,
        warm_head=2,
    )


def compiled(case: Case) -> et.ElasticModel:
    """The case's model, new."""
    return harness.compiled(case.build(), case.optimizer, case.learning_rate)


def states(case: Case, model: et.ElasticModel, probe_size: int) -> list[State]:
    """The moments from which masks are tried; leaves the model at the last one."""
    fresh = _values(model)
    found = []
    for seed in case.seeds:
        rng = np.random.default_rng(seed)
        restore(model, fresh)
        if case.warm_head:
            # a model of its own on the same layers: `model` keeps its optimizer
            plain = tf.keras.Model(model.inputs, model.outputs)
            warm = harness.compiled(plain, "adam", 1e-3)
            warm.set_mask(et.zoo.head_tensors(warm))
            for _ in range(case.warm_head):
                train_epoch(warm, _shuffled(case.train, rng), case.batch_size)
        for moment in ("start", "later"):
            found.append(
                State(
                    name=f"seed {seed}, {moment}",
                    values=_values(model),
                    epoch=_shuffled(case.train, rng),
                    probe=_shuffled(case.train, rng).rows(slice(probe_size)),
                )
            )
            model.set_mask(np.ones(len(model.tensors), bool))
            train_epoch(model, _shuffled(case.train, rng), case.batch_size)
    return found


def restore(model: et.ElasticModel, values: list[np.ndarray]) -> None:
    """Put back all weights, slots and counts."""
    for variable, value in zip(_variables(model), values):
        variable.assign(value)


def train_epoch(model: et.ElasticModel, samples: Samples, batch_size: int) -> None:
    """One pass in the order given, under the model's mask."""
    model.fit(*samples, batch_size=batch_size, shuffle=False, verbose=0)


def loss(model: et.ElasticModel, samples: Samples) -> float:
    """Mean loss in inference mode."""
    return float(model.evaluate(*samples, batch_size=120, verbose=0)[0])


def decreases(
    case: Case, model: et.ElasticModel, moments: list[State], masks: list[np.ndarray]
) -> np.ndarray:
    """Loss decrease of each mask from each state, (states, masks), on held-out images."""
    won, before = np.empty((len(moments), len(masks))), []
    for state in moments:
        restore(model, state.values)
        before.append(loss(model, case.held_out))
    for j, mask in enumerate(masks):
        model.set_mask(mask)  # traced once for all states
        for i, state in enumerate(moments):
            restore(model, state.values)
            train_epoch(model, state.epoch, case.batch_size)
            won[i, j] = before[i] - loss(model, case.held_out)
    return won


def masks_of_equal_cost(
    profile: et.TimingProfile, required: np.ndarray, count: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Random masks that hold `required` and take RHO of the full step time, a little less at most.

    The deepest tensor is drawn first, then the others in a random order as long as they fit.
    """
    budget = RHO * profile.t_full
    found: dict[bytes, np.ndarray] = {}
    for _ in range(1000 * count):
        deepest = int(rng.choice(np.flatnonzero(~required)))
        mask = required.copy()
        mask[deepest] = True
        if profile.step_time(mask) > budget:
            continue
        for k in rng.permutation(np.arange(deepest + 1, len(mask))):
            if not mask[k]:
                mask[k] = True
                mask[k] = profile.step_time(mask) <= budget
        if profile.step_time(mask) >= _USED * budget:
            found[mask.tobytes()] = mask
        if len(found) == count:
            return list(found.values())
    raise RuntimeError(f"Only {len(found)} of {count} masks of equal cost were found.")


def _variables(model: et.ElasticModel) -> list[tf.Variable]:
    et.optimizers.build(model.optimizer, model.trainable_variables)
    return [*model.variables, *et.optimizers.state(model.optimizer)]


def _values(model: et.ElasticModel) -> list[np.ndarray]:
    return [np.array(variable.numpy()) for variable in _variables(model)]


def _shuffled(samples: Samples, rng: np.random.Generator) -> Samples:
    return samples.rows(rng.permutation(len(samples.y)))


def _first(data: tf.data.Dataset, count: int) -> Samples:
    return Samples(*next(data.unbatch().batch(count).as_numpy_iterator()))
