"""What is measured of a training beside its course: step ratios and operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.costs.activations import activations
from elastic_tf.costs.flops import Flops, step_flops
from elastic_tf.engine.batches import as_batch
from elastic_tf.engine.snapshot import kept
from elastic_tf.optimizers import selected
from elastic_tf.timing.stopwatch import time_in_turn
from elastic_tf.timing.trace import StepFunction

_WARM_UP = 3  # steps that allocate and fill caches


class Speed(NamedTuple):
    """Steps of a method against full steps, timed in turn."""

    ratio: float  # mean over epochs of step time / full step time
    full_step_seconds: float  # of a full step, as fast as the machine was then


def speed(
    epochs: Sequence[tuple[et.ElasticModel, np.ndarray]],
    full: et.ElasticModel,
    batch: tuple[Any, Any],
    *,
    repeats: int = 10,
) -> Speed:
    """Step time in the epochs of a training / full step time; leaves nothing behind.

    Args:
        epochs: what each epoch trained, a compiled model and its mask; equal ones are timed once.
        full: what full training trains, compiled alike; the same model where the method trains
            the same network.
        batch: images and labels.
        repeats: timed steps of each kind.
    """
    data = as_batch(*batch)
    selected.build(full.optimizer, full.trainable_variables)
    whole = StepFunction(full, np.ones(len(full.tensors), bool))
    distinct = {(id(model), mask.tobytes()): (model, mask) for model, mask in epochs}
    ratios, seconds = {}, []
    for key, (model, mask) in distinct.items():
        selected.build(model.optimizer, model.trainable_variables)
        is_full = model is full and mask.all()
        steps = [whole] if is_full else [whole, StepFunction(model, mask)]
        with kept(full, [whole.graph(data)]), kept(model, [steps[-1].graph(data)]):
            for run in steps * _WARM_UP:
                run(data)
            times = time_in_turn(steps, data, repeats=repeats)
        ratios[key] = float(np.median(times[:, -1] / times[:, 0]))
        seconds.append(1e-6 * float(np.median(times[:, 0])))
    mean = np.mean([ratios[id(model), mask.tobytes()] for model, mask in epochs])
    return Speed(float(mean), float(np.median(seconds)))


class Cost(NamedTuple):
    """What the graph of a step says.

    Attributes:
        flops: operations.
        activation_bytes: kept for the backward pass; None where the graph does not tell.
    """

    flops: Flops
    activation_bytes: int | None


def counter(
    model: et.ElasticModel, image_shape: Sequence[int], batch_size: int, labels: int | None
) -> Callable[[np.ndarray], Cost]:
    """The cost of a step under a mask, counted once for each mask and network.

    Args:
        model: compiled.
        image_shape: height, width, channels.
        batch_size: images in a step.
        labels: classes that labels are shares of; None where a label is a number.
    """
    x = tf.zeros((batch_size, *image_shape))
    y = tf.zeros(batch_size, tf.int64) if labels is None else tf.zeros((batch_size, labels))
    known: dict[Any, Cost] = {}

    def count(mask: np.ndarray) -> Cost:
        # a method may make the network smaller
        key = (mask.tobytes(), *(tuple(tensor.shape) for tensor in model.tensors))
        if key not in known:
            found = activations(model, (x, y), mask)
            sizes = [activation.bytes for activation in found if activation.bytes is not None]
            held = sum(sizes) if len(sizes) == len(found) else None
            known[key] = Cost(step_flops(model, x, y, mask), held)
        return known[key]

    return count
