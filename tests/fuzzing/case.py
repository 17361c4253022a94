"""A random comparison as plain data, and the check that the library trains as the reference does.

    check(Case(model="conv", optimizer="adam", events=(At(0, 2, "plan last 2"),)))

What each field is for stands beside it. A plan is a text: "all", "last 3" (tensors in forward
order), "some 7" (chosen at random with that seed).
"""

import dataclasses
import gc
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

CLOSE = 2e-4  # of the largest weight of a tensor


class At(NamedTuple):
    """Something that a callback does: at the beginning of a batch, of an epoch with batch -1."""

    epoch: int
    batch: int
    # "plan last 2", "cache" (activations for the plan), "scale 3" (of a tensor), "set" (other
    # weights), "load" (the first weights, of a file), "lr 0.5" (times the rate), "evaluate",
    # "stop" (training), "raise"
    do: str
    fit: int = 0  # in the story


@dataclasses.dataclass(frozen=True, repr=False)
class Case:
    """One training; every default is the simplest."""

    model: str = "dense"  # of `kinds.MODELS`
    loss: str = "mse"  # "mse", "sparse" or "categorical"
    bias: bool = True  # of the head
    l2: float = 0.0  # regulariser of the kernels
    optimizer: str = "sgd"  # of `kinds.OPTIMIZERS`
    rate: float = 0.05
    options: tuple[str, ...] = ()  # of the optimizer: `kinds.OPTIONS`
    path: str = "arrays"  # "dataset", "generator", "samples", or "samples0" that keep nothing
    views: int = 1  # of augmented samples
    samples: int = 12
    batch: int = 4
    epochs: int = 2
    keep: float | None = None  # as of `compile`, like the next
    steps_per_execution: int = 1
    eager: bool = False
    weights: str = "none"  # "sample" or "class"
    validation: bool = False
    rhos: tuple[float, ...] = ()  # of each epoch, for an ElasticCallback
    importance: str = "depth"  # or "magnitude", "loss"
    backup: int | None = None  # steps between two, of the callback
    kill: tuple[int, int] | None = None  # epoch and batch; the same `fit` is then started again
    solve: bool = False  # SolveHead
    threads: bool = False  # two models at once
    # "plan ...", "fit", "solve", "compile", "save keras|weights|checkpoint"
    story: tuple[str, ...] = ("fit",)
    events: tuple[At, ...] = ()
    seed: int = 0

    @property
    def on_samples(self) -> bool:
        return self.path.startswith("samples")

    @property
    def steps(self) -> int:
        """In an epoch."""
        whole = self.samples // self.batch
        return whole if self.on_samples else -(-self.samples // self.batch)

    def acts(self, fit: int, epoch: int, batch: int) -> list[str]:
        """What happens there."""
        return [at.do for at in self.events if at[:2] == (epoch, batch) and at.fit == fit]

    def __repr__(self) -> str:
        """What differs from the defaults, to check this case alone."""
        given = {f.name: (getattr(self, f.name), f.default) for f in dataclasses.fields(self)}
        told = [f"{name}={value!r}" for name, (value, usual) in given.items() if value != usual]
        return f"Case({', '.join(told)})"


class Solved(NamedTuple):
    """A head in closed form: what the library said and which weights it set."""

    solution: Any
    weights: list[np.ndarray]


@dataclasses.dataclass
class Outcome:
    """What the library did, as far as the reference has to know.

    `order` has the place in `trainable_variables` of each tensor in forward order, `selections`
    (epoch, mask) of each `fit`, `weights` those after each item of the story.
    """

    start: list[np.ndarray]
    order: list[int]
    selections: list[list[tuple[int, np.ndarray]]] = dataclasses.field(default_factory=list)
    solved: list[Solved] = dataclasses.field(default_factory=list)
    weights: list[list[np.ndarray]] = dataclasses.field(default_factory=list)


def mask(plan: str, count: int) -> np.ndarray:
    """True where a tensor is trained, in forward order."""
    kind, _, number = plan.partition(" ")
    if kind == "last":
        return np.arange(count) >= count - min(int(number), count)
    chosen = np.ones(count, bool)
    if kind == "some":
        chosen = np.random.default_rng(int(number)).random(count) < 0.5
        chosen[-1 - int(number) % 2] = True
    return chosen


def disturbed(weights: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """Other weights, each up to a fifth larger or smaller."""
    rng = np.random.default_rng(seed)
    return [(w * (1.0 + 0.2 * rng.uniform(-1, 1, w.shape))).astype(w.dtype) for w in weights]


def check(case: Case) -> None:
    """Train by the library and by the reference: they must end with the same weights."""
    from fuzzing.reference import Reference
    from fuzzing.trained import Trainer

    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainers = [Trainer(case, Path(folder, str(k))) for k in range(1 + case.threads)]
            run = ThreadPoolExecutor().map if case.threads else map
            [*run(Trainer.run, trainers)]
            for trainer in trainers:
                reference = Reference(case, trainer.outcome)
                for number, item in enumerate(case.story):
                    reference.do(item)
                    _compare(case, reference, trainer.outcome, number)
    finally:
        tf.keras.backend.clear_session()
        gc.collect()


def _compare(case: Case, reference: Any, outcome: Outcome, number: int) -> None:
    """Weights after an item of the story: those never trained bit for bit, others closely."""
    pairs = zip(reference.model.weights, outcome.weights[number], outcome.start)
    for k, (variable, ours, start) in enumerate(pairs):
        theirs, name = variable.numpy(), getattr(variable, "path", variable.name)
        where = f"after story[{number}] ({case.story[number]!r}): weight {k}, {name}"
        if id(variable) in reference.untouched:
            assert np.array_equal(ours, theirs), f"{where}, was never trained and has changed"
            continue
        size = max(float(np.abs(theirs).max(initial=0.0)), 1.0)
        moved = float(np.abs(theirs - start).max(initial=0.0))
        off = float(np.abs(ours - theirs).max(initial=0.0))
        allowed = min(CLOSE * size, 0.02 * moved + 0.5 * CLOSE * size)
        assert off <= allowed, (
            f"{where}: {off:.2g} off, it moved by {moved:.2g}, {allowed:.2g} is allowed"
        )
