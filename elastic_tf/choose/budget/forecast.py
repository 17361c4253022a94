"""Will it pay? What the head alone, an elastic training and a full one will take, before any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose.budget.prior import first_step_seconds, prior_profile
from elastic_tf.choose.importance import depth
from elastic_tf.choose.selection import select_tensors
from elastic_tf.files import format_table
from elastic_tf.memory.steps import step
from elastic_tf.plan import Plan
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train.batches import first_batch
from elastic_tf.train.head.features import head_tensors
from elastic_tf.train.samples import Samples

_MIB = 2**20
_AS_QUICK = 0.9  # of full training's seconds: what saves less is not worth choosing
_COLUMNS = ("training", "tensors", "images", "epochs", "seconds:.1f", "mib:.0f:MiB")


@dataclass(frozen=True)
class Way:
    """One way to adapt a network."""

    training: str  #: its name
    tensors: int  #: how many are trained
    images: int  #: samples that are seen, each time anew
    epochs: int  #: passes over the samples; 0 for the head, which is solved
    #: All of it, tracing and kept activations included; reading data and validation not.
    seconds: float
    #: Bytes that a step takes at most; of the head those of a forward pass. What is kept of samples
    #: comes to it.
    memory: int


@dataclass(frozen=True)
class Forecast:
    """What three ways to adapt a network will take; `print` it for a table."""

    head: Way
    elastic: Way
    full: Way

    def __str__(self) -> str:
        rows = [
            {**vars(way), "mib": way.memory / _MIB} for way in (self.head, self.elastic, self.full)
        ]
        lines = [format_table(rows, _COLUMNS)]
        if self.elastic.seconds > _AS_QUICK * self.full.seconds:
            lines.append("Full training is about as quick: train everything.")
        return "\n".join(lines)


def forecast(
    model: Any,
    data: Any,
    *,
    rho: float = 0.5,
    epochs: int = 5,
    profile: TimingProfile | None = None,
    keeps: bool | None = None,
) -> Forecast:
    """What training will take on this device, without a step of it.

    Args:
        model: compiled elastic model; it stays as it is.
        data: `Samples`, or a `tf.data.Dataset` of batches (x, y) that knows how many there are.
        rho: allowed step time / full step time of the elastic training, in (0, 1].
        epochs: of either training.
        profile: of the model, in batches of this size; None: foretold.
        keeps: whether what lies before the first trained tensor is computed once of each sample.
            None: of `Samples`.

    Raises:
        ValueError: the data do not tell their size, or an argument is out of range.
    """
    arguments.elastic(model, compiled=True)
    arguments.rho("rho", rho)
    arguments.count("epochs", epochs)
    batch, batches = _looked_at(data)
    if keeps is None:
        keeps = isinstance(data, Samples) and bool(data.memory)
    if profile is None:
        profile = prior_profile(model, batch[0])
    forward, full = 1e-6 * profile.t_forward, 1e-6 * profile.t_full
    cached = filled = profile
    views = data.views if isinstance(data, Samples) else 1
    if keeps and epochs > views:
        # the callback counts the pass that computes activations, which gives the head, too
        cached, filled = (profile.with_cached_prefix(fill) for fill in (0.0, views / epochs))
    plan = select_tensors(depth(model), filled, rho, strategy="order").plan
    size = len(tf.nest.flatten(batch[0])[0])
    # its trace, and about as long for the closed form as for a fifth of the features
    head = 1.2 * batches * forward + 0.5 * first_step_seconds(model, 0.0)
    # the traces before a choice, and the head once more, of what is kept where something is
    beside = 2.0 * first_step_seconds(model, 0.0) + (0.6 if keeps else 1.2) * batches * forward
    share = cached.step_time(plan) / profile.t_full
    steps = epochs * batches * full  # of full training
    elastic = head + first_step_seconds(model, share) + share * steps + beside

    def way(name: str, which: Plan, passes: int, seconds: float) -> Way:
        images, memory = max(passes, 1) * batches * size, step(model, size, which).peak
        return Way(name, int(which.mask.sum()), images, passes, seconds, memory)

    return Forecast(
        way("head alone", Plan.from_mask(head_tensors(model)), 0, head),
        way(f"elastic, rho={rho:g}", plan, epochs, elastic),
        way("full", Plan.full(len(plan)), epochs, first_step_seconds(model, 1.0) + steps),
    )


def _looked_at(data: Any) -> tuple[Any, int]:
    """A batch of the data, and how many there are."""
    if isinstance(data, Samples):
        return data.take(tf.range(data.batch_size, dtype=tf.int64)), data.steps
    if not isinstance(data, tf.data.Dataset) or int(data.cardinality()) <= 0:
        raise ValueError(
            "`data` must be et.Samples, or a tf.data.Dataset of batches that knows how many there "
            f"are. Received: {arguments.brief(data)}. Use et.Samples(x, y, batch_size=16), or "
            "dataset.apply(tf.data.experimental.assert_cardinality(count))."
        )
    return first_batch(data), int(data.cardinality())
