"""The largest batch whose step fits into so much memory."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.memory import memory_plan
from elastic_tf.plan import Plan


def largest_batch(
    model: tf.keras.Model,
    limit: int | str,
    plan: Plan | np.ndarray | None = None,
    clip: bool = False,
) -> int:
    """The largest batch size whose planned step fits into memory; 0 if none does.

    Peaks grow almost in proportion to the batch, so that a few plans are enough. The next size
    does not fit; offsets are found by rules of thumb, and a larger one still might.

    Args:
        model: as of `elastic_tf.memory.plan`.
        limit: bytes, or a text like "256 MiB".
        plan: as of `elastic_tf.memory.plan`.
        clip: as of `elastic_tf.memory.plan`.
    """

    def peak(batch_size: int) -> int:
        return memory_plan.plan(model, batch_size, plan, clip).peak

    most = arguments.memory("limit", limit)
    least = peak(1)
    if least > most:
        return 0
    slope = max(1, peak(2) - least)
    fits, fails = 1, arguments.MOST
    guess = 1 + (most - least) // slope
    while fails - fits > 1:
        guess = min(max(guess, fits + 1), fails - 1)
        needed = peak(guess)
        if needed <= most:
            fits = guess
        else:
            fails = guess
        guess += (most - needed) // slope
    return fits
