"""Training methods: how one changes the model, and the callbacks that choose what trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from elastic_tf.choose.budget.settings import Deadline
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train.engine.mixin import ElasticMixin


@dataclasses.dataclass(frozen=True)
class Task:
    """What the callbacks of a method may need to know of a training.

    Attributes:
        model: what is trained; built and compiled.
        profile: its step times, for methods that need a profile.
        rho: allowed step time / full step time, or the seconds of `fit`, for the same methods.
        interval: epochs between two selections.
        probe: training data, in batches of the size that was profiled.
        probe_size: samples on which importance is evaluated.
        seed: of the draws.
        memory: most bytes of a step, or a text, for methods that need a profile; None: as it comes.
    """

    model: ElasticMixin
    profile: TimingProfile | None = None
    rho: float | Deadline = 0.5
    interval: int = 3
    probe: tf.data.Dataset | None = None
    probe_size: int = 64
    seed: int = 0
    memory: int | str | None = None


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to adapt a pre-trained model.

    Attributes:
        name: in the registry.
        summary: one line.
        callbacks: those of `fit`, made when the model is compiled; they choose what is trained.
        adapt: the model to train in the place of a pre-trained one, called before it is compiled.
            Its outputs are those of the given model, which stays as it is.
        needs_profile: whether `callbacks` reads profile, rho and probe.
        foretells: whether foretold times do where none were measured.
        can_go_on: whether a backup can go on with an interrupted `fit`.
    """

    name: str
    summary: str
    callbacks: Callable[[Task], list[tf.keras.callbacks.Callback]]
    adapt: Callable[[tf.keras.Model], tf.keras.Model] = lambda model: model
    needs_profile: bool = False
    foretells: bool = False
    can_go_on: bool = True
