"""Importance: how much the loss is expected to fall when a tensor is trained.

Every function here is called `(model, x, y, *, ...)`, returns float64 of shape (N,) in forward
order, and leaves the model, its optimizer and all random generators as they were, bit for bit.
A function of your own with that signature serves as well.
"""

from __future__ import annotations

import contextlib
import math
import random as python_random
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf import optimizers

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel

_READINGS = ("before", "after", "other")
# Ops that only look at a variable; anything else counts as writing to it.
_READERS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


def loss_decrease(
    model: ElasticModel,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    gradient: str = "other",
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Decrease of the loss to first order when the optimizer makes its next update.

    importance[k] = -sum(dL/dw_k * dw_k), dw the update that the compiled optimizer would make to
    all tensors, with its present slots and learning rate.

    Where the gradient dL/dw is taken:
        "other": before the update, on the half of the probe that dw does not come from, averaged
            over both ways round: the noise of the batch is not in the product. A probe of one
            sample has no other half: "before" is taken then, with a warning.
        "before": before the update, on the same samples (Eq. 5 with c = 0).
        "after": after the update, on the same samples, with the same augmentation and dropout
            (as the paper's released code does). Negative wherever the step overshoots.

    Args:
        model: a compiled elastic model.
        x: inputs of the probe; arrays or a structure of arrays, samples first.
        y: targets of the probe.
        sample_weight: weights of the samples.
        gradient: one of the three readings above.
        micro_batch_size: samples in one pass; the whole probe (or half of it) when None. Batch
            normalisation sees micro-batches as it sees the batches of training.

    Returns:
        float64, shape (N,), forward order; larger is better, may be negative.

    Raises:
        ValueError: the probe is empty, its loss or a gradient is not finite, or an option is
            unknown.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Eq. (2) and (5).
    """
    if gradient not in _READINGS:
        raise ValueError(f"`gradient` must be one of {_READINGS}. Received: gradient={gradient!r}.")
    samples = _Samples(x, y, sample_weight)
    if gradient == "other" and samples.count == 1:
        warnings.warn(
            "A probe of one sample has no other half: the gradient is taken before the update, "
            "on the same sample. Use a probe of at least two samples.",
            stacklevel=2,
        )
        gradient = "before"
    with _host_generators_kept(model):
        evaluator = _evaluator(model)
        if gradient == "other":
            halves = [samples.every_second(start) for start in (0, 1)]
            one, two = (evaluator.mean_gradients(h.batches(micro_batch_size)) for h in halves)
            worth = 0.5 * (evaluator.worth(one, two) + evaluator.worth(two, one))
        elif gradient == "before":
            here = evaluator.mean_gradients(samples.batches(micro_batch_size))
            worth = evaluator.worth(here, here)
        else:
            worth = evaluator.worth_after(samples.batches(micro_batch_size))
    return _finite(worth, model)


def gradient_magnitude(
    model: ElasticModel,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Sum of the absolute gradient of each tensor over the probe.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8.4 ("Grad.").
    """
    samples = _Samples(x, y, sample_weight)
    with _host_generators_kept(model):
        evaluator = _evaluator(model)
        gradients = evaluator.mean_gradients(samples.batches(micro_batch_size))
        magnitudes = [float(tf.reduce_sum(tf.abs(g))) for g in gradients]
    return _finite(evaluator.in_forward_order(magnitudes), model)


def weight_magnitude(model: ElasticModel, x: Any = None, y: Any = None) -> np.ndarray:
    """Sum of the absolute weights of each tensor; the probe is not looked at.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8.4 ("Weight").
    """
    return np.array([float(np.abs(v.numpy()).sum(dtype=np.float64)) for v in model.tensors])


def random(
    model: ElasticModel, x: Any = None, y: Any = None, *, seed: int | None = None
) -> np.ndarray:
    """Uniform importance in (0, 1]; the same for the same `seed`."""
    return 1.0 - np.random.default_rng(seed).random(len(model.tensors))


class _Samples:
    """The probe as tensors, cut into batches."""

    def __init__(self, x: Any, y: Any, sample_weight: Any = None) -> None:
        self.data = tf.nest.map_structure(_as_tensor, (x, y, sample_weight))
        counts = {
            len(part) for part in tf.nest.flatten(self.data) if part is not None and part.ndim
        }
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                "The probe must hold at least one sample, and equally many in `x`, `y` and "
                f"`sample_weight`. Received: {sorted(counts)} samples."
            )
        self.count = counts.pop()

    def every_second(self, start: int) -> _Samples:
        return _Samples(*self._cut(slice(start, None, 2)))

    def batches(self, size: int | None) -> list[tuple[float, Any]]:
        """(share of the samples, (x, y, sample_weight)) of each micro-batch."""
        if size is not None and size < 1:
            raise ValueError(
                f"`micro_batch_size` must be at least 1 or None. Received: micro_batch_size={size}."
            )
        size = self.count if size is None else size
        cuts = [slice(start, start + size) for start in range(0, self.count, size)]
        shares = [(min(cut.stop, self.count) - cut.start) / self.count for cut in cuts]
        return [(share, self._cut(cut)) for share, cut in zip(shares, cuts)]

    def _cut(self, cut: slice) -> Any:
        return tf.nest.map_structure(lambda part: None if part is None else part[cut], self.data)


def _as_tensor(part: Any) -> tf.Tensor | None:
    """A tensor; floating point in the type that `fit` would feed."""
    if part is None or tf.is_tensor(part):
        return part
    array = np.asarray(part)
    floating = np.issubdtype(array.dtype, np.floating)
    return tf.convert_to_tensor(array, tf.keras.backend.floatx() if floating else None)


class _Evaluator:
    """The traced passes of one compiled model; they live and go with it."""

    def __init__(self, model: ElasticModel) -> None:
        # The functions are stored on the model: a strong reference back would be a cycle.
        self._model = weakref.ref(model)
        self.compiled = _compiled(model)
        optimizers.build(model.optimizer, model.trainable_variables)
        self._connected: list[int] = []
        self._first = tf.function(self._gradients)
        self._second = tf.function(self._gradients)
        self._worth = tf.function(self._update_and_multiply)
        self._update = tf.function(self._update_and_subtract)

    @property
    def model(self) -> ElasticModel:
        model = self._model()
        assert model is not None
        return model

    def variables(self) -> list[tf.Variable]:
        tensors = self.model.tensors
        return [tensors[k] for k in self._connected]

    def mean_gradients(self, batches: list, *, again: bool = False) -> list[tf.Tensor]:
        """Gradients of the mean loss over the batches; `again` repeats the first pass's noise."""
        function = self._second if again else self._first
        total: list[tf.Tensor] = []
        kept: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        try:
            for share, data in batches:
                _keep(function, (data,), kept)
                loss, gradients = function(data)
                _check_loss(float(loss))
                if len(batches) == 1:
                    return gradients
                gradients = [share * g for g in gradients]
                total = [a + g for a, g in zip(total, gradients)] if total else gradients
        finally:
            _put_back(kept)
        return total

    def worth(self, update: list[tf.Tensor], gradients: list[tf.Tensor]) -> np.ndarray:
        """-sum(gradients * dw), dw the update made from `update`."""
        kept: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        _keep(self._worth, (update, gradients), kept)
        try:
            values = self._worth(update, gradients).numpy()
        finally:
            _put_back(kept)
        return self.in_forward_order(values)

    def worth_after(self, batches: list) -> np.ndarray:
        """-sum(gradients * dw), the gradients taken after the update dw of the same batches."""
        gradients = self.mean_gradients(batches)
        kept: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        _keep(self._update, (gradients,), kept)
        try:
            updates = self._update(gradients)
            gradients = self.mean_gradients(batches, again=True)
        finally:
            _put_back(kept)
        return self.in_forward_order([-float(_dot(g, dw)) for g, dw in zip(gradients, updates)])

    def in_forward_order(self, values: Sequence[float]) -> np.ndarray:
        """One value for each tensor; zero where the loss does not depend on it."""
        worth = np.zeros(len(self.model.tensors))
        worth[self._connected] = values
        return worth

    def _gradients(self, data: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if tf.compat.v1.get_default_graph().seed is None:
            # Without a seed two graphs would draw different dropout.
            tf.random.set_seed(0)
        tensors = self.model.tensors
        step, gradients = self.model.gradients(data, tensors)
        self._connected = [k for k, g in enumerate(gradients) if g is not None]
        return step.loss, [tf.convert_to_tensor(gradients[k]) for k in self._connected]

    def _update_and_subtract(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        variables = self.variables()
        old = [v.read_value() for v in variables]
        optimizers.apply_selected(self.model.optimizer, gradients, variables)
        return [v.read_value() - o for v, o in zip(variables, old)]

    def _update_and_multiply(
        self, update: list[tf.Tensor], gradients: list[tf.Tensor]
    ) -> tf.Tensor:
        updates = self._update_and_subtract(update)
        return tf.stack([-_dot(g, dw) for g, dw in zip(gradients, updates)])


def _evaluator(model: ElasticModel) -> _Evaluator:
    """The model's evaluator; a new one when it was compiled anew or other layers are trainable."""
    evaluator = model.__dict__.get("_importance_evaluator")
    if evaluator is None or not _same(evaluator.compiled, _compiled(model)):
        evaluator = _Evaluator(model)
        # Past Keras' __setattr__, which would track it and save it with the model.
        object.__setattr__(model, "_importance_evaluator", evaluator)
    return evaluator


def _compiled(model: ElasticModel) -> tuple:
    if getattr(model, "optimizer", None) is None:
        raise ValueError("The model must be compiled: the update is its optimizer's. Call compile.")
    return (model.optimizer, model.compiled_loss, *model.tensors)


def _same(one: tuple, two: tuple) -> bool:
    return len(one) == len(two) and all(a is b for a, b in zip(one, two))


def _dot(one: tf.Tensor, two: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reduce_sum(one * tf.cast(two, one.dtype)), tf.float64)


def _check_loss(loss: float) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"The loss on the probe must be finite. Received: loss={loss}. Lower the learning "
            "rate, or look at the probe's samples."
        )


def _finite(worth: np.ndarray, model: ElasticModel) -> np.ndarray:
    if not np.isfinite(worth).all():
        k = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(
            f"The gradient on the probe must be finite. Received: importance {worth[k]} of tensor "
            f"{k}, {model.tensors[k].name!r}. Lower the learning rate or clip the gradients."
        )
    return worth


def _keep(function: Any, arguments: tuple, kept: dict[int, tuple[tf.Tensor, tf.Tensor]]) -> None:
    """Notes the values of all variables that `function` writes to; no bytes are copied here."""
    graph = function.get_concrete_function(*arguments).graph
    for handle, inside in graph.captures:
        if handle.dtype != tf.resource or id(handle) in kept:
            continue
        about = getattr(handle, "_handle_data", None)
        if about is None or not about.is_set or not about.shape_and_type:
            continue  # a table or an iterator, not a variable
        if any(op.type not in _READERS for op in inside.consumers()):
            dtype = tf.as_dtype(about.shape_and_type[0].dtype)
            kept[id(handle)] = (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))


def _put_back(kept: dict[int, tuple[tf.Tensor, tf.Tensor]]) -> None:
    for handle, value in kept.values():
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


@contextlib.contextmanager
def _host_generators_kept(model: ElasticModel) -> Iterator[None]:
    """Puts back what tracing draws: the seeds of layers, the states of Python and NumPy."""
    keras = [
        layer._random_generator
        for layer in model.submodules
        if hasattr(getattr(layer, "_random_generator", None), "_seed")
    ]
    seeds = [generator._seed for generator in keras]
    python_state, numpy_state = python_random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for generator, seed in zip(keras, seeds):
            generator._seed = seed
        python_random.setstate(python_state)
        np.random.set_state(numpy_state)
