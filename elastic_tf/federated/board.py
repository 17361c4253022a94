"""What travels in a round, and a device without TensorFlow that trains by LiteRT.

Copied beside a client_app.py, it needs NumPy, Flower and `trainer.py` of an exported folder alone.

An array "3" of float32 is the new value of weight 3. One of float16 or int8 is its difference from
the base, to be multiplied by the array "3.scales", one for each output channel. Vectors, which are
small, are always float32. What rounding left of a difference is the sender's residual, and is added
to the next one: over rounds nothing is lost.

Source: Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

DTYPES = ("float32", "float16", "int8")
_LARGEST = {"float16": 1.0, "int8": 127.0}  # what the largest number of a channel becomes
_SCALES = ".scales"
_RESIDUAL = "elastic_tf.residual"  # in the state that Flower keeps on the device


def rate_in(config: Mapping[str, Any]) -> float:
    """The learning rate of a round: "rate", which falls on a cosine where "rounds" are given."""
    rounds, number = int(config.get("rounds", 0)), int(config.get("server-round", 1))
    share = 0.5 + 0.5 * math.cos(math.pi * min((number - 1) / rounds, 1.0)) if rounds else 1.0
    return share * float(config["rate"])


def fingerprint(weights: Iterable[np.ndarray]) -> str:
    """A hash of all bits of a model's weights."""
    digest = hashlib.sha256()
    for value in weights:
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def packed(
    new: Sequence[np.ndarray],
    base: Sequence[np.ndarray],
    dtype: str = "float32",
    residual: Mapping[int, np.ndarray] | None = None,
    *,
    dense: bool = False,
) -> tuple[ArrayRecord, dict[int, np.ndarray]]:
    """Arrays to send for the weights that differ in any bit, and the residuals that they leave.

    The receiver has the weights `base`; `residual` is what was left of earlier differences, by
    number; `dtype` one of `DTYPES`. With `dense` all weights are sent, in float32.
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}. Received: {dtype!r}.")
    arrays, left = dict[str, Array](), dict(residual or {})
    for k, (value, old) in enumerate(zip(new, base)):
        if not dense and value.tobytes() == old.tobytes():
            continue
        if dense or dtype == "float32" or value.ndim < 2 or value.dtype != np.float32:
            arrays[str(k)] = Array(np.ascontiguousarray(value))
            continue
        difference = value - old + left.get(k, np.float32(0.0))
        axis = max(a for a in range(value.ndim) if value.shape[a] > 1 or a == 0)
        others = tuple(a for a in range(value.ndim) if a != axis)
        scales = np.abs(difference).max(axis=others, keepdims=True) / np.float32(_LARGEST[dtype])
        scaled = difference / np.where(scales > 0.0, scales, np.float32(1.0))
        small = (np.rint(scaled) if dtype == "int8" else scaled).astype(dtype)
        left[k] = difference - small.astype(np.float32) * scales
        arrays |= {str(k): Array(small), f"{k}{_SCALES}": Array(scales)}
    return ArrayRecord(arrays), left


def unpacked(record: ArrayRecord, base: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """The new values that arrays mean, and the old ones in `base`, by the number of the weight.

    Raises:
        ValueError: they are not of this network, or not finite.
    """
    found = {}
    for name, array in record.items():
        if name.endswith(_SCALES):
            continue
        k = int(name) if name.isdecimal() else len(base)
        if k >= len(base):
            raise ValueError(f"an array {name!r}, for a network of {len(base)} weights")
        old, value = base[k], array.numpy()
        if value.shape != old.shape:
            raise ValueError(f"weight {k} of shape {value.shape} instead of {old.shape}")
        scales = record.get(name + _SCALES)
        if scales is not None:
            value = old + value.astype(np.float32) * scales.numpy()
        if (value.shape, value.dtype) != (old.shape, old.dtype):
            raise ValueError(f"weight {k} as {value.dtype} {value.shape} instead of {old.dtype}")
        if not np.isfinite(value).all():
            raise ValueError(f"weight {k} with values that are not finite")
        found[k] = value
    return found


def with_changes(record: ArrayRecord, base: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All weights after the changes."""
    found = unpacked(record, base)
    return [found.get(k, old) for k, old in enumerate(base)]


def received(message: Message, own: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The server's weights, on a device that has its own ones."""
    base = with_changes(message.content.array_records["arrays"], own)
    has, wanted = fingerprint(base), message.content.config_records["config"].get("base")
    if wanted not in (None, has):
        raise ValueError(
            "A device must have the weights that the server began with where only changes are "
            f"sent. Received: changes that should lead to weights {wanted}, and lead to {has}. "
            "Build the same network, or send down='whole'."
        )
    return base


def answer(
    message: Message,
    context: Context,
    new: Sequence[np.ndarray],
    base: Sequence[np.ndarray],
    metrics: Mapping[str, Any],
) -> Message:
    """What a device says of weights that it trained; the context keeps what rounding left."""
    config = message.content.config_records["config"]
    held = context.state.array_records.get(_RESIDUAL, ArrayRecord())
    dtype, dense = str(config.get("dtype", "float32")), bool(config.get("dense", False))
    left = {int(name): array.numpy() for name, array in held.items()}
    arrays, left = packed(new, base, dtype, left, dense=dense)
    context.state[_RESIDUAL] = ArrayRecord({str(k): Array(value) for k, value in left.items()})
    return reply(message, metrics, arrays, base=fingerprint(base))


def reply(
    message: Message, metrics: Mapping[str, Any], arrays: ArrayRecord, **told: Any
) -> Message:
    """An answer."""
    records = {"arrays": arrays, "metrics": MetricRecord(dict(metrics))}
    return Message(RecordDict({**records, "config": ConfigRecord(told)}), reply_to=message)


def train(message: Message, context: Context, trainer: Any, x: Any, y: Any) -> Message:
    """A round, as `elastic_tf.federated.train`, of a plan of the exported folder.

    A step of each plan is timed and thrown away, from the cheapest on, and the largest one whose
    epochs fit into the seconds is trained; of the cheapest as many steps as fit. The server's
    weights are those that the folder trains, in order.

    Args:
        trainer: `Trainer` of the exported folder; it is as exported afterwards.
        x: images, (n, height, width, channels) of 0 to 255.
        y: class numbers, (n,).
    """
    started, config = time.monotonic(), message.content.config_records["config"]
    exported, size = trainer.folder / "weights.state", trainer.batch_size
    trainer.load(exported)
    held = sorted(trainer.weights)
    base = received(message, [trainer.weights[k] for k in held])
    trainer.weights = {k: value.copy() for k, value in zip(held, base)}
    order = np.random.default_rng(int(config.get("server-round", 0))).permutation(len(y))
    rows = [order[k : k + size] for k in range(0, len(y), size)] * int(config.get("epochs", 1))
    rate = rate_in({"rate": trainer.model["optimizer"]["learning_rate"], **config})
    ends = started + float(config.get("seconds", np.inf))
    plan, losses, longest = 0, list[float](), 0.0
    for tried in range(len(trainer.plans)):
        step = sum(trainer.seconds(tried, trainer.batch(x, y, rows[0])))
        if time.monotonic() + len(rows) * step > ends:
            break
        plan = tried
    for part in rows:
        began = time.monotonic()
        if losses and began + longest > ends:
            break
        losses.append(trainer.step(plan, trainer.batch(x, y, part), rate))
        longest = max(longest, time.monotonic() - began) if len(losses) > 1 else 0.0
    metrics = {
        "num-examples": min(len(losses) * size, len(y)),
        "seconds": time.monotonic() - started,
        "share": float(trainer.plans[plan]["predicted_ratio"]),
        "loss": float(losses[-1]),
    }
    said = answer(message, context, [trainer.weights[k] for k in held], base, metrics)
    trainer.load(exported)
    return said
