"""The head of all clients' samples, solved at the server from sums that add up over devices.

Everything that ridge regression needs of the samples is a sum over them: their weight, features x
and targets y, x x^T, x y^T and y^2. The squared error of any solution on them follows from these.
Each client sends its sums, those of every fifth sample apart. The penalty is the one of the least
squared error on these, summed over clients, of the solution on the others: leave-one-out errors
would need the samples. Then the head is solved from all sums: it is that of all samples in one
place, to rounding. Logits of classes are scaled by the likelihood of the held-out samples, which a
second, short message asks for.

Source: Fani et al., Accelerating Heterogeneous Federated Learning with Closed-form Classifiers,
ICML 2024.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from logging import WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from elastic_tf.federated.strategy import FedElastic, log
from elastic_tf.lite.ridge import LEAST, MOST

HELD = 5  # of so many samples, one is held out
LOG_SCALES = np.linspace(-3.0, 6.0, 37)  # of logits, that are looked at
_PENALTIES = 24  # between the least and the most that are looked at


@dataclasses.dataclass(frozen=True)
class FederatedHead:
    """What `solve_head` found."""

    arrays: ArrayRecord  #: all weights, the solved head among them
    penalty: float  #: of the sum of squared weights, beside the weighted sum of squared errors
    scale: float  #: logits / regression values; 1 for regression
    error: float  #: mean squared error on held-out samples of the solution on the others
    samples: float  #: of the clients that answered, by their weight
    clients: int  #: how many answered


def solve_head(
    strategy: FedElastic,
    grid: Grid,
    arrays: ArrayRecord,
    config: ConfigRecord | None = None,
    *,
    timeout: float = 3600.0,
    penalty: float | None = None,
) -> FederatedHead:
    """Solve the network's dense head on the samples of all clients, of which only sums are sent.

    Args:
        strategy: whose messages and nodes these are; its `scale` is used, or found and kept.
        grid: Flower's.
        arrays: all weights of the network, as `ArrayRecord(model.get_weights())`.
        config: for the clients: `down` as of `FedElastic`; `noise` and `clip`, see
            `elastic_tf.federated.solved.noised`.
        timeout: seconds to wait for answers.
        penalty: None chooses it by held-out samples.

    Raises:
        ValueError: no client answered with sums.
    """
    config = ConfigRecord() if config is None else config

    def ask(reader: Callable[[RecordDict], Any], **more: ArrayRecord) -> Iterator[Any]:
        """What is read of the answers of all nodes to these weights."""
        record = RecordDict({"arrays": strategy.to_send(arrays, config), "config": config, **more})
        nodes, _ = sample_nodes(grid, strategy.min_available_nodes, len(list(grid.get_node_ids())))
        messages = [Message(record, dst_node_id=k, message_type="train.head") for k in nodes]
        strategy._asked = frozenset(nodes)
        return strategy.read(grid.send_and_receive(messages, timeout=timeout), reader)

    def sums(content: RecordDict) -> tuple[Any, list[Sums]]:
        """What a client says of the head; of what is solved from, and of what is held out."""
        told, given = content.config_records["config"], content.array_records["arrays"]
        shape = strategy._exact[int(told["kernel"])].shape
        parts = [from_record(given, part, *shape) for part in ("train", "held")]
        return tuple(sorted(told.items())), parts

    totals, nodes = dict[Any, list[Sums]](), dict[Any, list[int]]()
    for reply, (head, found) in ask(sums):
        both = zip(totals.get(head, ()), found)
        totals[head] = [one.plus(other) for one, other in both] or found
        nodes.setdefault(head, []).append(reply.metadata.src_node_id)
    if not totals:
        raise ValueError(
            "A client must answer with sums. Received: no good answer; the log says why. Start the "
            "clients, or give a longer `timeout`."
        )
    most = max(nodes, key=lambda head: len(nodes[head]))
    for head in nodes.keys() - {most}:
        log(WARNING, "\t> Left out nodes %s: their head is %s, not %s", nodes[head], head, most)
    told, (train, left) = dict(most), totals[most]
    intercept = told["bias"] >= 0
    of_others = Heads(train, intercept=intercept)
    penalty = of_others.best_penalty(left) if penalty is None else penalty
    of_train = of_others.weights(penalty)
    scale = 1.0 if told["kind"] == "linear" else strategy.scale
    if scale is None:
        sent = ArrayRecord([part.astype(np.float32) for part in of_train])
        losses = sum(found for _, found in ask(_losses, head=sent))
        scale = strategy.scale = float(np.exp(LOG_SCALES[int(np.argmin(losses))]))
    kernel, bias = Heads(train.plus(left), intercept=intercept).weights(penalty)
    solved = dict(arrays.items())
    for place, value in ((told["kernel"], kernel), (told["bias"], bias)):
        if place >= 0:
            solved[str(place)] = Array((scale * value).astype(np.float32))
    return FederatedHead(
        arrays=ArrayRecord(solved),
        penalty=penalty,
        scale=scale,
        error=left.error(*of_train) / max(float(left.weight), 1e-12) / len(bias),
        samples=float(train.weight + left.weight),
        clients=len(nodes[most]),
    )


def _losses(content: RecordDict) -> np.ndarray:
    """What a client lost at each scale."""
    value = content.array_records["arrays"]["losses"].numpy()
    if value.shape != LOG_SCALES.shape or not np.isfinite(value).all():
        raise ValueError(f"losses of shape {value.shape}, or not finite")
    return value


class Sums(NamedTuple):
    """Sums over weighted samples of `width` features x and `outputs` targets y; float64."""

    weight: np.ndarray  #: of all samples
    x: np.ndarray  #: (width,)
    y: np.ndarray  #: (outputs,)
    gram: np.ndarray  #: (width, width), of x x^T
    cross: np.ndarray  #: (width, outputs), of x y^T
    square: np.ndarray  #: of y^2

    @classmethod
    def of(cls, features: np.ndarray, wanted: np.ndarray, weight: np.ndarray) -> Sums:
        """Of features (n, width), targets (n, outputs) and weights (n,)."""
        x, y = np.asarray(features, np.float64), np.asarray(wanted, np.float64)
        weighted = weight[:, None] * x
        return cls(
            np.asarray(weight.sum()),
            weighted.sum(axis=0),
            weight @ y,
            x.T @ weighted,
            weighted.T @ y,
            np.asarray(weight @ (y**2).sum(axis=1)),
        )

    def plus(self, other: Sums) -> Sums:
        """The sums over the samples of both."""
        return Sums(*(np.asarray(one + two) for one, two in zip(self, other)))

    def error(self, kernel: np.ndarray, bias: np.ndarray) -> float:
        """Sum of squared errors of a linear head on these samples."""
        explained = (kernel * self.cross).sum() + bias @ self.y
        said = (kernel * (self.gram @ kernel)).sum() + 2.0 * (self.x @ kernel) @ bias
        return float(self.square - 2.0 * explained + said + self.weight * (bias @ bias))


class Heads:
    """The ridge regression of these samples for every penalty.

    With G the Gram matrix of centred features and C their products with centred targets,
    G = V diag(v) V^T, a penalty p has the kernel V diag(1 / (v + p)) V^T C. The intercept is free;
    without one nothing is centred.
    """

    def __init__(self, sums: Sums, *, intercept: bool = True) -> None:
        share = intercept / max(float(sums.weight), np.finfo(np.float64).tiny)
        self.mean, self.mean_wanted = share * sums.x, share * sums.y
        self.values, self.vectors = np.linalg.eigh(sums.gram - np.outer(self.mean, sums.x))
        self.along = self.vectors.T @ (sums.cross - np.outer(self.mean, sums.y))

    @property
    def penalties(self) -> np.ndarray:
        """From nothing to everything shrunk, evenly in their logarithm."""
        largest = max(float(self.values[-1]), np.finfo(np.float64).tiny)
        return largest * np.logspace(np.log10(LEAST), np.log10(MOST), _PENALTIES)

    def weights(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Kernel (width, outputs) and bias (outputs,)."""
        shrunk = np.maximum(self.values, 0.0)[:, None] + penalty
        kernel = self.vectors @ (self.along / shrunk)
        return kernel, self.mean_wanted - self.mean @ kernel

    def best_penalty(self, held: Sums) -> float:
        """The penalty of the least squared error on samples that were held out."""
        errors = [held.error(*self.weights(penalty)) for penalty in self.penalties]
        return float(self.penalties[int(np.argmin(errors))])


def noised(sums: Sums, noise: float, clip: float, wanted: np.ndarray) -> Sums:
    """The sums with symmetric Gaussian noise, for differential privacy of each sample.

    With features no longer than `clip`, a sample changes the matrix of the sums of (x / clip, 1, y)
    by at most 2 + |y|^2. Each entry gets noise of `noise` times that: for (epsilon, delta) it is
    sqrt(2 ln(1.25 / delta)) / epsilon.

    Source: Dwork et al., Analyze Gauss, STOC 2014, Algorithm 1.
    """
    if noise <= 0.0:
        return sums
    if clip <= 0.0:
        raise ValueError(
            f"`clip` must be given with noise: the longest that features may be. Received: {clip}."
        )
    rng = np.random.default_rng()
    bound = noise * (2.0 + float((wanted**2).sum(axis=1).max(initial=1.0)))
    units = [bound * clip**power for power in (0, 1, 0, 2, 1, 0)]  # of each of the sums
    drawn = [unit * rng.normal(size=one.shape) for unit, one in zip(units, sums)]
    drawn[3] = np.triu(drawn[3]) + np.triu(drawn[3], 1).T
    return sums.plus(Sums(*drawn))


def as_record(sums: Sums, name: str) -> dict[str, Array]:
    """Arrays to send; of the Gram matrix the upper triangle."""
    values = sums._asdict()
    values["gram"] = sums.gram[np.triu_indices(len(sums.x))]
    return {f"{name}.{part}": Array(np.asarray(value)) for part, value in values.items()}


def from_record(record: ArrayRecord, name: str, width: int, outputs: int) -> Sums:
    """The sums that were sent.

    Raises:
        ValueError: they are of another network, or not finite.
    """
    values = {part: record[f"{name}.{part}"].numpy() for part in Sums._fields}
    rows = np.triu_indices(width)
    shapes = [(), (width,), (outputs,), rows[0].shape, (width, outputs), ()]
    for (part, value), shape in zip(values.items(), shapes):
        if value.shape != shape or not np.isfinite(value).all():
            raise ValueError(f"{part} of shape {value.shape}, or not finite, instead of {shape}")
    gram = np.zeros((width, width))
    gram[rows] = values["gram"]
    values["gram"] = gram + np.triu(gram, 1).T
    return Sums(**values)
