"""A device without TensorFlow: LiteRT trains an exported folder, Flower carries what changed.

Copied with `changes.py` beside a client_app.py, it needs NumPy, Flower and `trainer.py` of the
folder alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

if TYPE_CHECKING or __package__:
    from . import changes
else:  # copied
    import changes

_RESIDUAL = "elastic_tf.residual"


def train(message: Message, context: Context, trainer: Any, x: Any, y: Any) -> Message:
    """A round, as `elastic_tf.federated.train`, of a plan of the exported folder.

    A step of each plan is timed and thrown away, from the cheapest on, and the largest one whose
    epochs fit into the seconds is trained; of the cheapest as many steps as fit.

    The config says by `places` which number each of the folder's tensors has among the weights of
    the server's model: `[position[id(one)] for one in model.tensors]`. Without, the same. Weights
    that the folder has as constants, as moving statistics, must not change in training.

    Args:
        trainer: `Trainer` of the exported folder; it is as exported afterwards.
        x: images, (n, height, width, channels) of 0 to 255.
        y: class numbers, (n,).
    """
    started, config = time.monotonic(), message.content.config_records["config"]
    places = config.get("places", range(len(trainer.model["tensors"])))
    number = {k: int(places[k]) for k in trainer.weights}
    exported = trainer.folder / "weights.state"
    trainer.load(exported)
    base = {number[k]: value.copy() for k, value in trainer.weights.items()}
    names = {f"{k}{end}" for k in base for end in ("", changes.SCALES)}
    given = message.content.array_records["arrays"]
    received = ArrayRecord({name: one for name, one in given.items() if name in names})
    base |= changes.unpacked(received, base)
    _set(trainer, number, base)
    size = trainer.batch_size
    order = np.random.default_rng(int(config.get("server-round", 0))).permutation(len(y))
    rows = [order[k : k + size] for k in range(0, len(y), size)] * int(config.get("epochs", 1))
    rate = changes.rate_in({"rate": trainer.model["optimizer"]["learning_rate"], **config})
    ends = started + float(config.get("seconds", np.inf))
    plan, losses = 0, list[float]()
    for tried in range(len(trainer.plans)):
        seconds = []
        for _ in range(2):  # the first one makes ready
            began = time.monotonic()
            trainer.step(tried, trainer.batch(x, y, rows[0]), rate)
            seconds.append(time.monotonic() - began)
        if time.monotonic() + len(rows) * seconds[1] > ends:
            break
        plan = tried
    trainer.slots, trainer.steps = {}, {}
    _set(trainer, number, base)
    longest = 0.0
    for part in rows:
        began = time.monotonic()
        if losses and began + longest > ends:
            break
        losses.append(trainer.step(plan, trainer.batch(x, y, part), rate))
        longest = max(longest, time.monotonic() - began) if len(losses) > 1 else 0.0
    new = {number[k]: value for k, value in trainer.weights.items()}
    held = context.state.array_records.get(_RESIDUAL, ArrayRecord())
    left = {int(k): one.numpy() for k, one in held.items()}
    arrays, left = changes.packed(new, base, str(config.get("dtype", "float32")), left)
    context.state[_RESIDUAL] = ArrayRecord({str(k): Array(one) for k, one in left.items()})
    metrics = {
        "num-examples": min(len(losses) * size, len(y)),
        "seconds": time.monotonic() - started,
        "share": float(trainer.plans[plan]["predicted_ratio"]),
        "loss": float(losses[-1]),
    }
    trainer.load(exported)
    records = {"arrays": arrays, "metrics": MetricRecord(metrics)}
    return Message(
        RecordDict({**records, "config": ConfigRecord({"base": config["base"]})}), reply_to=message
    )


def _set(trainer: Any, number: dict[int, int], values: dict[int, np.ndarray]) -> None:
    """Give it these weights."""
    trainer.close()
    trainer.weights = {k: values[place].copy() for k, place in number.items()}
