"""A device: from Flower's message, its own model and samples to an answer.

`train` and `evaluate` answer messages of these names, `head` those of "train.head", which
`solve_head` sends. The model has the server's weights meanwhile; the context is Flower's.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as older

from elastic_tf.choose.budget.prior import first_step_seconds, prior_profile
from elastic_tf.choose.importance import depth
from elastic_tf.choose.selection import select_tensors, smallest_feasible_rho
from elastic_tf.federated import board
from elastic_tf.federated.solved import HELD, LOG_SCALES, Sums, as_record, noised
from elastic_tf.files import quarter_of_memory
from elastic_tf.memory import Limit
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train import optimizers
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head import targets
from elastic_tf.train.head.features import collect, dense_layer
from elastic_tf.train.samples import Samples

_MASKS = "secaggplus_configs"  # of Flower's SecAgg+


def train(
    message: Message,
    context: Context,
    model: ElasticMixin,
    samples: Samples,
    *,
    profile: TimingProfile | None = None,
    memory: int | str | None = None,
    slowdown: float | None = None,
) -> Message:
    """Train what this device's time and memory allow, and answer with what changed.

    The message's config says for all clients: `seconds`, the round's deadline (none: everything is
    trained); `epochs`, passes over the samples (1); `dtype` of the answer, "float32", "float16" or
    "int8"; `rate`, the learning rate, where it is not the compiled one; `rounds`, over which that
    falls on a cosine; `dense`, to answer with all tensors in float32, as secure aggregation and
    differential privacy need.

    Tensors are chosen from the last one on, as many as fit. Where even the least does not fit,
    fewer steps are made. The optimizer begins each round as it was compiled. What rounding to
    float16 or int8 leaves behind is kept in `context.state` and added to the next answer.

    Args:
        message: of Flower's server.
        context: Flower's, of this device.
        model: compiled elastic model; it gets the server's weights.
        samples: of this device.
        profile: this device's step times. None: foretold from a forward pass.
        memory: bytes of a step, or a text like "256 MiB".
        slowdown: simulate a device so many times slower: the plan is made for that, and the clock
            is not asked. None: this device, by the clock.

    Returns:
        The answer: arrays, samples, seconds and the planned seconds and share of a full step.

    Raises:
        ValueError: the weights are not those that the server began with, the seconds suffice for no
            step, or secure aggregation is asked to add up answers that are not dense. Flower's
            server is told, and goes on without this device.
    """
    started, config = time.perf_counter(), message.content.config_records["config"]
    if _MASKS in message.content.config_records and not config.get("dense", False):
        raise ValueError(
            "Secure aggregation adds up the same tensors of all clients. Received: a round of "
            "answers that hold the changed tensors alone. Set dense=True in the round's config."
        )
    epochs, batch = int(config.get("epochs", 1)), samples.take(np.arange(samples.batch_size))
    is_plain = samples.augment is None and (epochs == 1 or samples.memory == 0)
    a_pass = -(-samples.count // samples.batch_size) if is_plain else samples.steps
    optimizers.build(model.optimizer, model.trainable_variables)
    with _received(message, model) as base:
        if profile is None:
            profile = prior_profile(model, batch[0])
        second = 1e-6 * (slowdown or 1.0)  # of this device, to a microsecond of the profile
        seconds, ends = float(config.get("seconds", np.inf)), np.inf
        if slowdown is None:
            ends = started + seconds
            first = first_step_seconds(model, smallest_feasible_rho(profile))
            seconds = ends - time.perf_counter() - first
        share, steps = _share_and_steps(profile, seconds, second, epochs * a_pass, config)
        limit = None if memory is None else Limit(memory, model, batch)
        chosen = select_tensors(depth(model), profile, share, strategy="order", memory=limit)
        model.set_plan(chosen.plan)
        if "rate" in config:
            model.optimizer.learning_rate = board.rate_in(config)
        clock = _Clock(steps, ends)
        options = {"epochs": -(-steps // a_pass), "callbacks": [clock], "verbose": 0}
        seed = samples.seed + int(config.get("server-round", 0))  # each round in another order
        if is_plain:  # nothing is kept of the samples or drawn: traced once for all of them
            order = np.random.default_rng(seed).permutation(samples.count)
            x, y, weight = (*samples.take(order), None)[:3]
            given = {"y": y, "sample_weight": weight, "batch_size": samples.batch_size}
            history = model.fit(x, **given, **options, shuffle=False).history
        else:
            drawn = copy.copy(samples)
            drawn.seed = seed
            history = model.fit(drawn, **options).history
        new = model.get_weights()
    metrics = {
        "num-examples": min(clock.made * samples.batch_size, samples.rows),
        "seconds": time.perf_counter() - started,
        "planned-seconds": float(clock.made * second * profile.step_time(chosen.plan)),
        "share": float(chosen.time / profile.t_full),
        "loss": float(history["loss"][-1]),
    }
    return board.answer(message, context, new, base, metrics)


def evaluate(message: Message, context: Context, model: tf.keras.Model, data: Any) -> Message:
    """Answer with the loss and metrics of the server's weights on this device's data.

    The model is compiled; `data` are arrays (x, y), or a `tf.data.Dataset` of batches.
    """
    given = data if isinstance(data, tuple) else (data,)
    with _received(message, model):
        found = model.evaluate(*given, verbose=0, return_dict=True)
    count = len(data[1]) if isinstance(data, tuple) else sum(len(batch[1]) for batch in data)
    metrics = MetricRecord({"num-examples": count, **{k: float(v) for k, v in found.items()}})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def head(
    message: Message,
    context: Context,
    model: tf.keras.Model,
    samples: Samples,
    *,
    layer: str | None = None,
) -> Message:
    """Answer with the sums over samples that the server solves the head from.

    Every fifth sample is held out: its sums are sent apart. To a second message, with the head of
    the others, the answer is the loss of the held-out samples at each scale of the logits. The
    model is compiled; the dense layer is the one of that name, or its last one.
    """
    config, dense = message.content.config_records["config"], dense_layer(model, layer)
    with _received(message, model) as base:
        features, y, weight, each = collect(model, dense, samples, quarter_of_memory())
    kind = targets.kind(model, dense, y)
    features, wanted = features[:], targets.wanted(y, dense.units, kind)
    held = np.arange(len(wanted)) // each % samples.count % HELD == HELD - 1
    places = {id(one): k for k, one in enumerate(model.weights)}
    bias = places[id(dense.bias)] if dense.use_bias else -1
    told = {"kernel": places[id(dense.kernel)], "bias": bias, "kind": kind}
    arrays = dict[str, Array]()
    if "head" in message.content.array_records:
        given = message.content.array_records["head"].to_numpy_ndarrays()
        logits, loss = features[held] @ given[0] + given[1], targets.LOSSES[kind]
        sums = [weight[held] @ loss(np.exp(s) * logits, wanted[held]) for s in LOG_SCALES]
        arrays["losses"] = Array(np.array(sums))
    else:
        limit, noise = float(config.get("clip", 0.0)), float(config.get("noise", 0.0))
        if limit > 0.0:
            length = np.linalg.norm(features, axis=1, keepdims=True)
            features = features * np.minimum(1.0, limit / np.maximum(length, 1e-12))
        for part, rows in (("train", ~held), ("held", held)):
            found = Sums.of(features[rows], wanted[rows], weight[rows])
            arrays |= as_record(noised(found, noise, limit, wanted), part)
    told["base"] = board.fingerprint(base)
    return board.reply(message, {"num-examples": samples.count}, ArrayRecord(arrays), **told)


class _Clock(tf.keras.callbacks.Callback):
    """Ends `fit` after so many steps, or before a step would end too late."""

    def __init__(self, steps: int, ends: float) -> None:
        super().__init__()
        self.made, self._steps, self._ends = 0, steps, ends
        self._last, self._longest = time.perf_counter(), 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the step; the first one was traced."""
        now = time.perf_counter()
        if self.made:
            self._longest = max(self._longest, now - self._last)
        self.made, self._last = self.made + 1, now
        if self.made >= self._steps or now + self._longest > self._ends:
            self.model.stop_training = True


def _share_and_steps(
    profile: TimingProfile, left: float, second: float, steps: int, config: ConfigRecord
) -> tuple[float, int]:
    """The share of a full step that there is time for in the seconds left, and how many of `steps`.

    `second`: seconds of this device to a microsecond of the profile.
    """
    least, full = smallest_feasible_rho(profile), second * profile.t_full
    share = min(left / (steps * full), 1.0)
    if share < least:
        share, steps = least, int(left / (least * full))
    if steps < 1:
        raise ValueError(
            f"The round must last for a step. Received: seconds={config['seconds']:g}, of which "
            f"{max(left, 0.0):.3g} are left when training can begin; a step of the last tensors "
            f"takes {least * full:.3g}. Give more seconds."
        )
    return share, steps


@contextlib.contextmanager
def _received(message: Message, model: Any) -> Iterator[list[np.ndarray]]:
    """The server's weights, set inside of it; then model and optimizer are as they were."""
    own, state = model.get_weights(), optimizers.state(model.optimizer)
    base, kept = board.received(message, own), [variable.numpy() for variable in state]
    try:
        model.set_weights(base)
        yield base
    finally:
        model.set_weights(own)
        for variable, value in zip(state, kept):
            variable.assign(value)


def masked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Secure aggregation: a mod of Flower's by which `train` answers an older message.

    Flower 1.42 has SecAgg+ for its older messages alone: `SecAggPlusWorkflow` at the server, with a
    strategy of `flwr.server.strategy`, and `secaggplus_mod` at the client. This mod stands behind
    the latter: `ClientApp(mods=[secaggplus_mod, masked])`.

    The server's `on_fit_config_fn` must say `dense`: what is added up under masks are the same
    tensors of all clients. A tensor that a client did not train counts as its old value, so that a
    client moves what it trained by its share of all samples. Weights beyond the workflow's
    `clipping_range` are cut off: give one above the largest, and as `max_weight` not much more than
    the largest number of samples, or rounding is coarse.
    """
    if message.metadata.message_type != "train":
        return call_next(message, context)
    given = older.recorddict_to_fitins(message.content, keep_input=True)
    content = RecordDict(
        {
            "arrays": ArrayRecord(parameters_to_ndarrays(given.parameters)),
            "config": ConfigRecord(dict(given.config)),
            _MASKS: message.content.config_records[_MASKS],
        }
    )
    answer = call_next(Message(content, metadata=message.metadata), context)
    metrics = dict(answer.content["metrics"])
    result = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters(answer.content["arrays"].to_numpy_ndarrays()),
        int(metrics.pop("num-examples")),
        metrics,
    )
    return Message(older.fitres_to_recorddict(result, keep_input=False), reply_to=message)
