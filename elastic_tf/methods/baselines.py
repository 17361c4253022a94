"""The methods that elastic training is compared with, and itself, by name.

Some train one set of tensors, others select by importance within the same budget, and `neurons` are
those of another paper. Others are taken from where they are: "my_methods.py:mine" is the method
"mine" among the `METHODS` of that file.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.callback import ElasticCallback
from elastic_tf.choose import importance as importances
from elastic_tf.choose.budget.settings import Control, Deadline
from elastic_tf.choose.probe import Probe
from elastic_tf.methods.neurons import TrainNeurons
from elastic_tf.plan import Plan
from elastic_tf.stack import raw
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.features import head_tensors


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

    def drawn(self) -> Probe:
        """The probe of an importance."""
        return Probe(self.probe, size=self.probe_size, seed=self.seed)


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


def get(name: str) -> Method:
    """The method of that name; or of a file, package folder or module, as "FILE.py:NAME".

    What is imported for it finds what stands beside it, as a script does.

    Raises:
        ValueError: there is none of that name, or no such file, or none with `METHODS`.
    """
    if not isinstance(name, str) or ":" not in name:
        return METHODS[arguments.choice("name", name, NAMES)]
    where, _, own = name.rpartition(":")
    path = Path(where)
    if path.exists():
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        where = path.stem
    elif importlib.util.find_spec(where.partition(".")[0]) is None:
        raise ValueError(
            f"A method is NAME, FILE.py:NAME or MODULE:NAME. Received: {where!r}, which is no file "
            "and no module."
        )
    module = importlib.import_module(where)
    found = getattr(module, "METHODS", ())
    if not found or not all(isinstance(method, Method) for method in found):
        raise ValueError(
            "A file of methods must have METHODS, a list of et.baselines.Method. Received: "
            f"{found!r} in {module.__file__}."
        )
    methods = {method.name: method for method in found}
    return methods[arguments.choice("name", own, methods)]


class TrainOnly(tf.keras.callbacks.Callback):
    """Trains by one plan, or what is True in a mask, from the first step of a `fit` to the last."""

    def __init__(self, plan: Plan | np.ndarray) -> None:
        super().__init__()
        self._plan = plan

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_set = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._is_set:
            self.model.set_plan(self._plan)
            self.model.cache_prefix(self.params["epochs"] - epoch)
            self._is_set = True


def bn_bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for head, biases, gamma and beta of normalisation; bool, shape (N,), forward order."""
    scales = _held(model, lambda layer, name: name == "gamma" and _normalises(layer))
    return head_tensors(model) | bias_tensors(model) | scales


def bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for biases and the beta of normalisation; bool, shape (N,), forward order.

    A tensor is a bias by what it is for the layer that owns it, whatever its own name: an attribute
    `bias` or one that ends in `_bias`.
    """

    def is_bias(layer: tf.keras.layers.Layer, name: str) -> bool:
        return name == "bias" or name.endswith("_bias") or (name == "beta" and _normalises(layer))

    return _held(model, is_bias)


def filtered_plan(model: ElasticMixin) -> Plan:
    """Filtered gradients for the last four convolutions, exact ones behind and beside the kernels.

    Everything before is frozen; with fewer convolutions it trains from the first one on. One whose
    outputs have fewer than 2 pixels a side keeps exact gradients.

    Source: Yang, Li, Marculescu, Efficient On-device Training via Gradient Filtering, CVPR 2023,
    Sec. 4, which trains the last 2 to 10 by patches of 2 or 4 pixels a side.
    """
    held = _held(
        model, lambda layer, name: name.endswith("kernel") and "Conv2D" in type(layer).__name__
    )
    kernels = np.flatnonzero(held)
    fits = modes.kernels(model, "filtered:2")
    behind = np.arange(len(fits)) >= (kernels[-4:][0] if len(kernels) else 0)
    return Plan.from_mask(behind).filtered(2, fits & behind)


def _held(
    model: ElasticMixin, is_chosen: Callable[[tf.keras.layers.Layer, str], bool]
) -> np.ndarray:
    """True for the tensors that are chosen by their layer and the name of its attribute."""
    chosen = {
        id(raw(value))
        for layer in model._flatten_layers()
        for name, value in vars(layer).items()
        if is_chosen(layer, name)
    }
    return np.array([id(tensor) in chosen for tensor in model.tensors])


def _normalises(layer: tf.keras.layers.Layer) -> bool:
    """Whether it scales and shifts; one of both may be switched off, and its attribute None."""
    return {"gamma", "beta"} <= vars(layer).keys()


def with_importance(
    name: str,
    summary: str,
    importance: Callable[..., Any],
    *,
    is_of_task: bool = False,
    foretells: bool = False,
    **options: Any,
) -> Method:
    """The elastic callback with another importance, or with what that gives for a `Task`."""

    def callbacks(task: Task) -> list[tf.keras.callbacks.Callback]:
        settings = {
            "rho": task.rho,
            "importance": importance(task) if is_of_task else importance,
            "interval": task.interval,
            "probe": task.drawn(),
            "required": head_tensors(task.model),
            "memory": task.memory,
        }
        return [ElasticCallback(task.profile, **{**settings, **options})]

    return Method(name, summary, callbacks, needs_profile=True, foretells=foretells)


def at_random(task: Task) -> Callable[..., np.ndarray]:
    """An importance that takes tensors in random order, another one at each call.

    They are taken while they fit: the most random importance would prefer what is cheap.
    """
    generator = np.random.default_rng(task.seed)

    def importance(model: Any, x: Any = None, y: Any = None) -> np.ndarray:
        return 1.0 + generator.permutation(len(model.tensors))

    importance.strategy = "order"  # type: ignore[attr-defined]
    return importance


#: Every method of the package by its name.
METHODS: dict[str, Method] = {
    one.name: one
    for one in (
        Method("full", "all tensors", lambda task: []),
        Method(
            "traditional_tl", "the head alone", lambda task: [TrainOnly(head_tensors(task.model))]
        ),
        Method(
            "bn_bias",
            "head, biases and normalisation parameters",
            lambda task: [TrainOnly(bn_bias_tensors(task.model))],
        ),
        Method(
            "gradient_filtering",
            "the last four convolutions by gradients of 2 x 2 patches (Yang et al., 2023)",
            lambda task: [TrainOnly(filtered_plan(task.model))],
        ),
        with_importance(
            "elastic", "the last tensors that fit rho", importances.depth, foretells=True
        ),
        with_importance(
            "elastic_loss",
            "what lowers the loss most within rho, anew each interval",
            importances.loss_decrease,
        ),
        with_importance(
            "elastic_weight",
            "as elastic_loss, by the magnitude of the weights",
            importances.weight_magnitude,
        ),
        with_importance(
            "elastic_grad",
            "as elastic_loss, by the magnitude of the gradients",
            importances.gradient_magnitude,
        ),
        with_importance("elastictrainer", "as the paper's released code", importances.paper),
        with_importance("random", "at random within rho", at_random, is_of_task=True),
        # The paper searches exhaustively, 2^N plans, for the best progress of the first epochs
        # (Sec. 2.1, Fig. 2b). Here it is the optimum of the first importance, uncorrected.
        with_importance(
            "offline_optimal",
            "as elastic_loss, chosen once at the start",
            importances.loss_decrease,
            interval=arguments.MOST,
            control=Control(share=0.0),
        ),
        Method(
            "velocity",
            "the fastest neurons, anew each epoch, 8.8 % of the weights (Quelennec et al., 2024)",
            lambda task: [TrainNeurons(task.drawn(), seed=task.seed)],
        ),
        Method(
            "random_neurons",
            "as velocity, drawn at random each epoch",
            lambda task: [TrainNeurons(None, seed=task.seed)],
        ),
    )
}
#: Names that `get` knows.
NAMES = tuple(METHODS)
