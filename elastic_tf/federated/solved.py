"""The head of all clients' samples, solved at the server from sums that add up.

Each client sends the sums of `elastic_tf.federated.sums` over its samples, those of every fifth
sample apart. The penalty is the one of the least squared error on these, summed over clients, of
the solution on the others: leave-one-out errors would need the samples. Then the head is solved
from all sums: it is that of all samples in one place, to rounding. Logits of classes are scaled by
the likelihood of the held-out samples, which a second, short message asks for.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from elastic_tf.federated import changes
from elastic_tf.federated.strategy import FedElastic, log_missing
from elastic_tf.federated.sums import LOG_SCALES, Heads, Sums, from_record

_ACTION = "train.head"
_log = getLogger("flwr").log


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
            `elastic_tf.federated.sums.noised`.
        timeout: seconds to wait for answers.
        penalty: None chooses it by held-out samples.

    Raises:
        ValueError: no client answered with sums.
    """
    config = ConfigRecord() if config is None else config

    def ask(more: dict[str, ArrayRecord]) -> Iterator[Message]:
        """Answers of all nodes to these weights; the log says which are left out."""
        sent = strategy.to_send(arrays, config)
        record = RecordDict({"arrays": sent, "config": config, **more})
        nodes, _ = sample_nodes(grid, strategy.min_available_nodes, len(list(grid.get_node_ids())))
        messages = [Message(record, dst_node_id=node, message_type=_ACTION) for node in nodes]
        base = changes.fingerprint(strategy._sent)
        replies = list(grid.send_and_receive(messages, timeout=timeout))
        log_missing(nodes, replies)
        for reply in replies:
            said = reply.error.reason if reply.has_error() else None
            if said is None and reply.content.config_records.get("config", {}).get("base") != base:
                said = "its answer is to other weights"
            if said is None:
                yield reply
            else:
                _log(WARNING, "\t> Left out node %d: %s", reply.metadata.src_node_id, said)

    answers = list(ask({}))
    totals, clients = list[Sums](), 0  # of what is solved from, and of what is held out
    heads = Counter(tuple(sorted(reply.content["config"].items())) for reply in answers)
    told: dict[str, Any] = dict(*(head for head, _ in heads.most_common(1)))  # as most say
    for reply in answers:
        try:
            if dict(reply.content["config"]) != told:
                raise ValueError(f"its head is {dict(reply.content['config'])}, not {told}")
            width, outputs = strategy._exact[int(told["kernel"])].shape
            arrived = reply.content["arrays"]
            found = [from_record(arrived, one, width, outputs) for one in ("train", "held")]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            _log(WARNING, "\t> Left out node %d: %r", reply.metadata.src_node_id, error)
            continue
        totals = [one.plus(other) for one, other in zip(totals, found)] if totals else found
        clients += 1
    if not totals:
        raise ValueError(
            f"A client must answer with sums. Received: {len(answers)} answers, none of them good; "
            "the log says why. Start the clients, or give a longer `timeout`."
        )
    intercept = told["bias"] >= 0
    train, left = totals
    of_others = Heads(train, intercept=intercept)
    penalty = of_others.best_penalty(left) if penalty is None else penalty
    of_train = of_others.weights(penalty)
    scale = 1.0 if told["kind"] == "linear" else strategy.scale
    if scale is None:
        sent = ArrayRecord([part.astype(np.float32) for part in of_train])
        losses = np.sum([_losses(reply) for reply in ask({"head": sent})], axis=0)
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
        clients=clients,
    )


def _losses(reply: Message) -> np.ndarray:
    """What a client lost at each scale; zeros where it does not say."""
    for array in reply.content.get("arrays", {}).values():
        value = array.numpy()
        if value.shape == LOG_SCALES.shape and np.isfinite(value).all():
            return value
    return np.zeros(LOG_SCALES.shape)
