"""Optimizers that can leave tensors out: built over all tensors, applied to some of them.

Three kinds are served: Keras optimizers (`tf.keras.optimizers.Optimizer`), legacy ones
(`tf.keras.optimizers.legacy.Optimizer`, which TensorFlow Addons builds on), and either of them
inside a `LossScaleOptimizer`. All three update only the tensors they are given; what has to be
taken care of is that the slots exist for all tensors from the start, in the order of a plain
model's optimizer, so that the state is interchangeable and a tensor can come and go.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.optimizers import bias_correction, decay
from elastic_tf.stack import all_reduce_sum_gradients

LEGACY = tf.keras.optimizers.legacy.Optimizer
CURRENT = tf.keras.optimizers.Optimizer
_MOST_RATE = 1e30  # larger ones are infinite in float32


def sgdw(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: Any = 5e-4,
    *,
    nesterov: bool = False,
) -> tf.keras.optimizers.legacy.Optimizer:
    """SGD with momentum and decoupled weight decay: SGDW of TensorFlow Addons, or its equal.

    w <- w - weight_decay * w - learning_rate * v, v the momentum of the gradient; the decay is not
    multiplied by the learning rate.

    Args:
        learning_rate: number or `LearningRateSchedule`.
        momentum: share of the last velocity that is kept.
        weight_decay: share of the weight taken away at each step; number or schedule.
        nesterov: use Nesterov momentum.

    TensorFlow Addons has no build for Linux on ARM and for Python 3.12; without it
    `elastic_tf.optimizers.decay.SGDW` does the same, bit for bit.

    Source: Loshchilov & Hutter, Decoupled Weight Decay Regularization, ICLR 2019, Algorithm 1.
    """
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        _check_rate(name, value)
    arguments.number("momentum", momentum, low=0.0, high=1.0, below=True)
    arguments.flag("nesterov", nesterov)
    with warnings.catch_warnings():
        # tensorflow-addons 0.23 announces its end of life and its tested versions at import.
        warnings.simplefilter("ignore")
        try:
            from tensorflow_addons.optimizers import SGDW
        except ImportError:
            SGDW = decay.SGDW

    return SGDW(
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=nesterov,
    )


def by_name(name: str, learning_rate: Any) -> Any:
    """An optimizer with the paper's settings.

    Args:
        name: one of `NAMES`: "sgd" with momentum 0.9, "sgdw" with momentum 0.9 and decay 5e-4, or
            "adam".
        learning_rate: number or `LearningRateSchedule`.

    Raises:
        ValueError: another name.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8 (SGDW, for ViT Adam).
    """
    arguments.choice("name", name, NAMES)
    _check_rate("learning_rate", learning_rate)
    return _BY_NAME[name](learning_rate)


def check(optimizer: Any) -> None:
    """Refuse what is not an optimizer that can leave tensors out.

    Raises:
        TypeError: `optimizer` is of none of the kinds above.
    """
    if not isinstance(unwrapped(optimizer), (LEGACY, CURRENT)):
        advice = "Use for instance elastic_tf.optimizers.sgdw(1e-3)."
        if optimizer is None:
            advice = "Compile the model first: model.compile(optimizer=..., loss=...)."
        raise TypeError(
            "`optimizer` must be one `tf.keras.optimizers.Optimizer`, "
            "`tf.keras.optimizers.legacy.Optimizer` or `LossScaleOptimizer`: only their slots can "
            f"be kept for the tensors left out. Received: {optimizer!r} of type "
            f"{type(optimizer).__name__}. {advice}"
        )


def build(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Make the slots of all `variables`, as the first step of a plain model would.

    Does nothing if they are there. The slots of tensors built first by somebody else stay; legacy
    optimizers gain those that are missing.

    Args:
        optimizer: of a kind that `check` admits.
        variables: all trainable tensors in the order of `model.trainable_variables`.

    Raises:
        ValueError: the optimizer was built before, over other tensors.
    """
    check(optimizer)
    variables = _checked_variables(variables)
    inner = unwrapped(optimizer)
    if isinstance(inner, LEGACY):
        with tf.name_scope(inner._name), tf.init_scope():
            inner._create_all_weights(list(variables))
        return
    # Keras builds the optimizer inside a loss scale optimizer outside its name scope.
    with tf.name_scope(inner.name if inner is optimizer else ""), tf.init_scope():
        inner.build(list(variables))
    for variable in variables:
        if inner._var_key(variable) not in inner._index_dict:
            raise ValueError(
                "The optimizer must be built over all trainable tensors of the model. Received: "
                f"an optimizer built over {len(inner._index_dict)} tensors without "
                f"'{variable.name}'. Compile the model with a new optimizer."
            )
    with tf.init_scope():
        bias_correction.build(inner, len(inner._index_dict))


def gradients(
    optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    """Gradients of `loss` as the optimizer wants them: scaled in the tape, unscaled after it.

    Args:
        optimizer: of a kind that `check` admits.
        tape: the tape that recorded `loss` and watched `variables`.
        loss: scalar.
        variables: tensors to differentiate for.

    Returns:
        One gradient per variable; None where the loss does not depend on it.
    """
    check(optimizer)
    what = "a GradientTape that recorded the loss"
    arguments.instance("tape", tape, tf.GradientTape, what)
    if not tf.is_tensor(loss):
        raise TypeError(f"`loss` must be a tensor. Received: {brief(loss)}.")
    variables = _checked_variables(variables)
    legacy = isinstance(unwrapped(optimizer), LEGACY)
    compute = optimizer._compute_gradients if legacy else optimizer.compute_gradients
    return [gradient for gradient, _ in compute(loss, list(variables), tape=tape)]


def apply_selected(
    optimizer: Any,
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
    variables: Sequence[tf.Variable],
) -> None:
    """Update `variables` only: everything `apply_gradients` promises, for them alone.

    Clipping sees the given gradients only; weight decay, moving averages and constraints touch the
    given variables only. With no variables this does nothing, `iterations` included.

    On one replica the gradients are not summed over replicas: the sum is the identity, but in
    TensorFlow 2.15 it goes through `tf.custom_gradient`, which keeps every traced graph in a global
    registry for good (5 to 11 MB per trace of a MobileNet).

    Args:
        optimizer: built over all tensors by `build`.
        gradients: one per variable.
        variables: tensors to update.
    """
    check(optimizer)
    variables = _checked_variables(variables)
    given = arguments.items("gradients", gradients, what="a list of gradients")
    if len(given) != len(variables):
        raise ValueError(
            f"`gradients` must be one for each of `variables`. Received: {len(given)} for "
            f"{len(variables)}: {brief(gradients)} for {brief(variables)}."
        )
    for gradient in given:
        if gradient is not None and not tf.is_tensor(gradient):
            raise TypeError(f"`gradients` must be tensors or None. Received: {brief(gradient)}.")
    if not variables:
        return
    if all(gradient is None for gradient in given):
        raise ValueError(
            "`gradients` must hold one: the loss depends on no variable that is trained. Received: "
            f"{brief(gradients)}."
        )
    options = {"experimental_aggregate_gradients": False} if _can_skip_sum(optimizer) else {}
    with bias_correction.counting(unwrapped(optimizer), variables):
        optimizer.apply_gradients(list(zip(gradients, variables)), **options)


@contextlib.contextmanager
def finalizing_only(
    optimizer: Any, trained: Collection[int], *, before: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Let `finalize_variable_values` act on some variables only, while in this context.

    Keras calls it at the end of `fit` with all trainable variables, to put their moving averages
    in their place. The average of a tensor that was left out did not follow it.

    Args:
        optimizer: of a kind that `check` admits.
        trained: `id` of each variable to finalize; read at the end of `fit`.
        before: called at the end of `fit`, before anything is finalized.
    """
    check(optimizer)
    if not isinstance(trained, Collection) or isinstance(trained, (str, bytes)):
        raise TypeError(f"`trained` must be a set of ids. Received: trained={brief(trained)}.")
    arguments.function("before", before)
    if not getattr(optimizer, "use_ema", False):
        yield
        return
    finalize = optimizer.finalize_variable_values

    def finalize_trained(variables: Sequence[tf.Variable]) -> None:
        before()
        finalize([variable for variable in variables if id(variable) in trained])

    optimizer.finalize_variable_values = finalize_trained
    try:
        yield
    finally:
        del optimizer.finalize_variable_values


def state(optimizer: Any) -> list[tf.Variable]:
    """Every variable of the optimizer: step count, slots, averages, rates, loss scale."""
    check(optimizer)
    inner = unwrapped(optimizer)
    if isinstance(inner, LEGACY):
        found = [*inner.weights, *inner._hyper.values()]
    else:
        rates = (
            getattr(inner, "_learning_rate", None),
            getattr(inner, "_current_learning_rate", None),
        )
        found = [*inner.variables, *rates, bias_correction.of(inner)]
    if inner is not optimizer and optimizer.dynamic:
        found += [optimizer.dynamic_counter, optimizer._loss_scale.current_loss_scale]
    unique = {id(item): item for item in found if isinstance(item, tf.Variable)}
    return list(unique.values())


def rate(optimizer: Any) -> tf.Variable | None:
    """The learning rate; None where it follows a schedule."""
    check(optimizer)
    inner = unwrapped(optimizer)
    legacy = isinstance(inner, LEGACY)
    found = inner._hyper.get("learning_rate") if legacy else inner._learning_rate
    return found if isinstance(found, tf.Variable) else None


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a loss scale optimizer, or the optimizer itself."""
    if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def _check_rate(name: str, value: Any) -> None:
    schedule = tf.keras.optimizers.schedules.LearningRateSchedule
    if isinstance(value, (schedule, tf.Variable, tf.Tensor)):
        return
    if callable(value):
        try:
            inspect.signature(value).bind()
        except (TypeError, ValueError):
            raise TypeError(
                f"`{name}` as a function must take no arguments. Received: {name}={brief(value)}. "
                "Use a LearningRateSchedule for a rate that depends on the step."
            ) from None
        return
    hint = "A LearningRateSchedule will do as well."
    arguments.number(name, value, low=0.0, high=_MOST_RATE, hint=hint)


def _checked_variables(variables: Any) -> list[tf.Variable]:
    found = arguments.items("variables", variables, what="a list of variables")
    for variable in found:
        arguments.instance("variables", variable, tf.Variable, "a list of variables")
    return found


def _can_skip_sum(optimizer: Any) -> bool:
    """Whether the sum over replicas is Keras's own, and the identity."""
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        return False
    options = inspect.signature(optimizer.apply_gradients).parameters.values()
    if not any(
        option.name == "experimental_aggregate_gradients" or option.kind is option.VAR_KEYWORD
        for option in options
    ):
        return False
    inner = unwrapped(optimizer)
    kind = type(inner)
    if isinstance(inner, LEGACY):
        return (
            kind._aggregate_gradients is LEGACY._aggregate_gradients
            and kind._transform_unaggregated_gradients is LEGACY._transform_unaggregated_gradients
            and inner.gradient_aggregator is all_reduce_sum_gradients
        )
    return kind.aggregate_gradients is CURRENT.aggregate_gradients


_BY_NAME = {
    "sgd": lambda rate: tf.keras.optimizers.SGD(rate, momentum=0.9),
    "sgdw": lambda rate: sgdw(rate, momentum=0.9, weight_decay=5e-4),
    "adam": tf.keras.optimizers.Adam,
}
#: Names that `by_name` knows.
NAMES = tuple(_BY_NAME)
