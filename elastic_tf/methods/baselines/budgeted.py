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

from elastic_tf.choose.importance.evaluation import Evaluator, as_probe, batches_of, halves
from elastic_tf.choose.importance.fisher import ChannelFisher
from elastic_tf.choose.importance.probe import Probe
from elastic_tf.memory.kernels import KernelCosts, kernel_costs
from elastic_tf.methods.baselines.fixed import TrainOnly, bias_tensors
from elastic_tf.methods.baselines.method import Method, Task
from elastic_tf.methods.fewshot.rule import Budgets, Offer, paper_rule, search, with_best
from elastic_tf.plan import EXACT, NAMES, SOME, Plan
from elastic_tf.train import optimizers
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.features import head_tensors

# What SparseUpdate takes of MobileNetV2 0.35 (TinyTrain, Table 2): 2.08 MB, where inference takes
# 896 KiB; 8.10M of 34.9M multiply-adds.
_MEMORY, _COMPUTE = 2.4, 0.23
_INSPECTED = 0.4  # the part of the kernels, the last ones, that may be trained (30 to 44 %)
_STEPS, _RATE = 3, 1e-3  # of Adam in a trial


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
    contribution = _contributions(model, x, y)
    axes = modes.channel_axes(model, NAMES[SOME])
    sizes = {k: _magnitudes(model.tensors[k].numpy(), axes.get(k, -1)) for k in inspected}
    offers = [
        Offer(k, name, share, contribution({k: np.argsort(-sizes[k])[:count]}))
        for k in inspected
        for name, count, share in costs.shares_of(k)
    ]
    every = np.arange(len(costs.sizes))
    biases = np.flatnonzero(bias_tensors(model) & ~head_tensors(model))
    found: list[tuple[float, list[Offer]]] = []
    for depth in range(1 + sum(biases > inspected[0])):
        last = biases[len(biases) - depth :].tolist()
        gain = contribution(dict.fromkeys(last)) if depth else 0.0
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


def _contributions(model: Any, x: Any, y: Any) -> Callable[[dict[int, Any]], float]:
    """From tensors, and the channels of each (None: all), to what training them short brings.

    It is what the loss falls by more than with the head alone; the model is left as it was.
    """
    one, judge = halves(as_probe(x, y))
    batches, evaluator, loss = batches_of(one, None), Evaluator.of(model), _loss(model)
    mean_loss = tf.function(
        lambda x, y: tf.reduce_mean(loss(model(x, training=False), y)), reduce_retracing=True
    )
    axes = modes.channel_axes(model, NAMES[SOME])

    def gradients() -> dict[int, tf.Tensor]:
        return evaluator.by_tensor(evaluator.gradients(batches))

    def part(k: int, gradient: tf.Tensor, some: Any) -> tf.Tensor:
        """The gradient, zero for other channels; where it always was, Adam changes nothing."""
        count = gradient.shape[axes.get(k, -1)]
        if some is None or len(some) == count:
            return gradient
        shape = np.ones(gradient.shape.rank, int)
        shape[axes[k]] = -1
        return gradient * np.isin(np.arange(count), some).reshape(shape).astype(np.float32)

    def loss_after(parts: dict[int, Any]) -> float:
        tensors = {k: model.tensors[k] for k in parts}
        before = {k: tf.identity(tensor) for k, tensor in tensors.items()}
        adam = optimizers.adam(_RATE)
        try:
            for step in range(_STEPS):
                found = gradients() if step else first
                known = [k for k in parts if k in found]
                adam.apply_gradients((part(k, found[k], parts[k]), tensors[k]) for k in known)
            return float(mean_loss(*judge[:2]))
        finally:
            for k, tensor in tensors.items():
                tensor.assign(before[k])

    first = gradients()  # the same in all trials
    head = dict.fromkeys(np.flatnonzero(head_tensors(model)).tolist())
    alone = loss_after(head)
    return lambda parts: alone - loss_after({**head, **parts})


def _inspected(model: ElasticMixin) -> tuple[KernelCosts, list[int]]:
    """What the tensors cost, and the last kernels before the head, ascending."""
    costs = kernel_costs(model)
    kernels = np.flatnonzero((costs.macs > 0) & ~head_tensors(model))
    return costs, kernels[-max(1, round(_INSPECTED * len(kernels))) :].tolist()


def _budgets(costs: KernelCosts, memory: float, compute: float) -> Budgets:
    return Budgets.of(costs, round(memory * costs.peak), compute)


def _with_head(model: ElasticMixin, plan: Plan) -> Plan:
    return plan.with_mode(NAMES[EXACT], head_tensors(model))


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

        return [TrainOnly(find(task.model) if offline else find)]

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
