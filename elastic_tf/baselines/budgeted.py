"""Methods that choose channels once, within memory and multiply-adds.

Both budgets are for one image and a runtime that keeps nothing in vain (`KernelCosts`); the head,
which is new, is trained beside them. They count no seconds, so these methods take no rho; where
methods are compared at equal seconds, they get as many epochs as fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import optimizers
from elastic_tf.baselines.fixed import bias_tensors
from elastic_tf.baselines.method import Method, Task
from elastic_tf.engine import modes
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.fewshot.rule import Budgets, Offer, paper_rule, search, with_best
from elastic_tf.importance.evaluation import Evaluator, as_probe, batches_of, halves
from elastic_tf.importance.fisher import ChannelFisher
from elastic_tf.importance.probe import Probe
from elastic_tf.memory.kernels import KernelCosts, kernel_costs
from elastic_tf.plan import EXACT, NAMES, SOME, Plan
from elastic_tf.zoo import models

# What SparseUpdate takes of MobileNetV2 0.35 (TinyTrain, Table 2): 2.08 MB, where inference takes
# 896 KiB; 8.10M of 34.9M multiply-adds.
_MEMORY, _COMPUTE = 2.4, 0.23
_INSPECTED = 0.4  # the part of the kernels, the last ones, that may be trained (30 to 44 %)
_STEPS, _RATE = 3, 1e-3  # of Adam in a trial
_KEY = "chosen"  # in `model.fit_state`


class ChooseOnce(tf.keras.callbacks.Callback):
    """Trains by the plan that is found before the first step of a `fit`; not again if it goes on.

    Args:
        find: model -> plan.
    """

    def __init__(self, find: Callable[[ElasticMixin], Plan]) -> None:
        super().__init__()
        self._find = find

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_set = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._is_set:
            known = self.model.fit_state.get(_KEY)
            plan = self._find(self.model) if known is None else Plan.from_json(known)
            self.model.set_plan(plan)
            self.model.cache_prefix(self.params["epochs"] - epoch)
            self.model.fit_state[_KEY], self._is_set = plan.to_json(), True


def tinytrain_plan(
    model: ElasticMixin, x: Any, y: Any, memory: float = _MEMORY, compute: float = _COMPUTE
) -> Plan:
    """Kernels by the Fisher information of their outputs for each weight and multiply-add.

    Args:
        model: compiled elastic model with a loss of single samples.
        x: samples of the new task.
        y: their targets.
        memory: most bytes / bytes of inference.
        compute: most multiply-adds of a backward pass / those of a whole one.

    Source: Kwon et al., TinyTrain, ICML 2024, Sec. 2.2, Algorithm 1.
    """
    costs, inspected = _inspected(model)
    fisher = ChannelFisher(model, _loss(model), inspected)
    plan = paper_rule(fisher(x, y), costs, _budgets(costs, memory, compute))
    return _with_head(model, plan)


def sparse_update_plan(
    model: ElasticMixin, x: Any, y: Any, memory: float = _MEMORY, compute: float = _COMPUTE
) -> Plan:
    """Kernels, shares of their channels and biases by what training each of them alone brings.

    Each kernel, with each share of its channels, and the biases from each place on are trained for
    some steps beside the head on half of the samples. What the loss of the other half falls by more
    than with the head alone is their contribution. Contributions are taken to add up, and an exact
    search, in the place of the paper's evolutionary one, finds most of them within both budgets. Of
    a kernel the channels of the largest weights are trained. It is the loss and not the accuracy,
    for which few samples are too coarse.

    Args are those of `tinytrain_plan`.

    Source: Lin et al., On-Device Training Under 256KB Memory, NeurIPS 2022, Sec. 3.2, as told by
    Quelennec et al., WACV 2024, Sec. 3.1.
    """
    costs, inspected = _inspected(model)
    trials = _Trials(model, x, y)
    axes = modes.channel_axes(model, NAMES[SOME])
    sizes = {k: _magnitudes(model.tensors[k].numpy(), axes.get(k, -1)) for k in inspected}
    offers = []
    for k in inspected:
        for name, count, share in costs.shares_of(k):
            some = np.argsort(-sizes[k])[:count]
            offers.append(Offer(k, name, share, trials.contribution({k: some})))
    every = np.arange(len(costs.sizes))
    biases = np.flatnonzero(bias_tensors(model) & ~models.head_tensors(model))
    found: list[tuple[float, list[Offer]]] = []
    for depth in range(1 + sum(biases > inspected[0])):
        last = biases[len(biases) - depth :].tolist()
        gain = trials.contribution(dict.fromkeys(last)) if depth else 0.0
        required = [Offer(k, NAMES[EXACT], 1.0, 0.0) for k in last]
        budgets = _budgets(costs, memory, compute)
        chosen = search([*required, *offers], costs, budgets, required=depth)
        if chosen is not None:
            found.append((gain + sum(offer.worth for offer in chosen), chosen))
    plan = Plan.from_mask(np.zeros(len(every), bool))
    for k, name, _, _ in max(found, key=lambda one: one[0])[1]:
        if k in sizes:
            plan = with_best(plan, k, name, sizes[k], costs)
        else:
            plan = plan.with_mode(name, every == k)
    return _with_head(model, plan)


class _Trials:
    """Short trainings of some tensors, or of some channels of them, that leave nothing behind."""

    def __init__(self, model: ElasticMixin, x: Any, y: Any) -> None:
        self._model: Any = model
        one, self._judge = halves(as_probe(x, y))
        self._batches = batches_of(one, None)
        self._evaluator, loss = Evaluator.of(self._model), _loss(model)
        self._mean_loss = tf.function(
            lambda x, y: tf.reduce_mean(loss(model(x, training=False), y)), reduce_retracing=True
        )
        self._first = self._gradients()  # the same in all trials
        self._head = dict.fromkeys(np.flatnonzero(models.head_tensors(model)).tolist())
        self._axes = modes.channel_axes(model, NAMES[SOME])
        self._alone = self._loss_after(self._head)

    def contribution(self, parts: dict[int, Any]) -> float:
        """What training these tensors beside the head brings; the channels of each, None: all."""
        return self._alone - self._loss_after({**self._head, **parts})

    def _gradients(self) -> dict[int, tf.Tensor]:
        return self._evaluator.by_tensor(self._evaluator.gradients(self._batches))

    def _loss_after(self, parts: dict[int, Any]) -> float:
        tensors = {k: self._model.tensors[k] for k in parts}
        before = {k: tf.identity(tensor) for k, tensor in tensors.items()}
        adam = optimizers.adam(_RATE)
        try:
            for step in range(_STEPS):
                gradients = self._gradients() if step else self._first
                adam.apply_gradients(
                    (self._taken(k, gradients[k], some), tensors[k])
                    for k, some in parts.items()
                    if k in gradients
                )
            return float(self._mean_loss(*self._judge[:2]))
        finally:
            for k, tensor in tensors.items():
                tensor.assign(before[k])

    def _taken(self, k: int, gradient: tf.Tensor, some: Any) -> tf.Tensor:
        """The gradient, zero for other channels; where it always was, Adam changes nothing."""
        if some is None or len(some) == gradient.shape[self._axes.get(k, -1)]:
            return gradient
        shape = np.ones(gradient.shape.rank, int)
        shape[self._axes[k]] = -1
        count = gradient.shape[self._axes[k]]
        return gradient * np.isin(np.arange(count), some).reshape(shape).astype(np.float32)


def _inspected(model: ElasticMixin) -> tuple[KernelCosts, list[int]]:
    """What the tensors cost, and the last kernels before the head, ascending."""
    costs = kernel_costs(model)
    kernels = np.flatnonzero((costs.macs > 0) & ~models.head_tensors(model))
    return costs, kernels[-max(1, round(_INSPECTED * len(kernels))) :].tolist()


def _budgets(costs: KernelCosts, memory: float, compute: float) -> Budgets:
    return Budgets.of(costs, round(memory * costs.peak), compute)


def _with_head(model: ElasticMixin, plan: Plan) -> Plan:
    return plan.with_mode(NAMES[EXACT], models.head_tensors(model))


def _magnitudes(kernel: np.ndarray, axis: int) -> np.ndarray:
    """The sum of the squared weights of each channel."""
    return (kernel**2).sum(axis=tuple(a for a in range(kernel.ndim) if a != axis % kernel.ndim))


def _loss(model: ElasticMixin) -> Callable[..., tf.Tensor]:
    """(outputs, y) -> (n,) the compiled loss of each sample."""
    loss = model.loss() if isinstance(model.loss, type) else model.loss
    loss = tf.keras.losses.get(loss) if isinstance(loss, str) else loss
    each = getattr(loss, "call", loss)
    if not callable(each):
        raise ValueError(
            "The model must be compiled with one loss. Received: "
            f"loss={model.loss!r}. Compile it with a Keras loss or its name."
        )
    return lambda outputs, y: each(y, outputs)


def _method(name: str, summary: str, plan: Callable[..., Plan], *, offline: bool) -> Method:
    def callbacks(task: Task) -> list[tf.keras.callbacks.Callback]:
        def find(model: ElasticMixin) -> Plan:
            draws, _ = Probe(task.probe, size=task.probe_size, seed=task.seed).draws()
            assert draws is not None
            return plan(model, *draws.draw()[:2])

        found = find(task.model) if offline else None
        return [ChooseOnce(find if found is None else lambda model: found)]

    return Method(name, summary, callbacks)


METHODS = (
    _method(
        "sparse_update",
        "layers, channels and biases by what each brings alone, found before (Lin et al., 2022)",
        sparse_update_plan,
        offline=True,
    ),
    _method(
        "tinytrain",
        "channels by Fisher information within memory and multiply-adds (Kwon et al., 2024)",
        tinytrain_plan,
        offline=False,
    ),
)
