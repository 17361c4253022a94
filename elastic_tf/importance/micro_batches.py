"""Less at a time where memory does not suffice: the probe in smaller micro-batches."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.importance.evaluation import Evaluator

_FULL = (tf.errors.ResourceExhaustedError, MemoryError)


def evaluated(
    evaluator: Evaluator, evaluate: Callable[[int | None], np.ndarray], size: int | None, count: int
) -> np.ndarray:
    """What `evaluate` returns, with micro-batches as large as memory allows.

    They are halved until they fit, and stay so small for this evaluator. Sums over smaller
    micro-batches are the same up to rounding; only batch normalisation and dropout see other
    batches.

    Args:
        evaluator: of the model, which `evaluate` leaves as it was.
        evaluate: called with a number of samples; None: all at once.
        size: samples to begin with; None: all.
        count: samples of the probe.

    Raises:
        ValueError: `size` is no number of samples.
        MemoryError: a single sample at a time does not fit.

    Warns:
        UserWarning: they were halved.
    """
    if size is not None:
        arguments.count("micro_batch_size", size, hint="None takes all samples at once.")
    asked = count if size is None else min(size, count)
    tried = min(asked, evaluator.most_samples or asked)
    now, reason = tried, ""
    while now:
        try:
            found = evaluate(size if now == asked else now)
        except _FULL as error:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = next((line.strip() for line in lines if "OOM" in line), lines[0])
        else:
            break
        evaluator.forget()  # here, for `except` keeps what the failed pass held
        gc.collect()
        now //= 2
    else:
        raise MemoryError(
            "The importance of all tensors needs memory for one sample at a time. Received: "
            f"{reason}. Use smaller inputs, importance=elastic_tf.importance.weight_magnitude, or "
            "a device with more memory."
        )
    if now < tried:
        evaluator.most_samples = now
        warnings.warn(
            f"The probe does not fit into memory in micro-batches of {tried} samples: {reason}. "
            f"From now on it is evaluated in micro-batches of {now}.",
            stacklevel=3,
        )
    return found
