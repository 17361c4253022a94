"""The server: each tensor is averaged over the clients that trained it.

With n the samples of a client, D its change of a tensor, and the sums over the clients that trained
this tensor, the new tensor is  w + sum(n D) / sum(n).  A tensor that nobody trained stays.

Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017; averages over those who have a part as in Diao et al., HeteroFL, ICLR 2021.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, Result
from safetensors import SafetensorError, safe_open

from elastic_tf import arguments
from elastic_tf.federated.board import DTYPES, fingerprint, packed, unpacked, with_changes
from elastic_tf.files import write_bytes

log = getLogger("flwr").log
_DOWN = ("whole", *DTYPES)
_MOMENTS = ("m_t", "v_t")  # of Flower's FedOpt
_STATE = "elastic_tf.federated 2"


class FedElastic(FedAvg):
    """Flower's `FedAvg` for clients that answer with the tensors that they trained.

    `train_config` of `start` goes to the clients, see `elastic_tf.federated.train`, and says by
    `down` what the server sends: "whole", all weights; or those alone that differ from the initial
    ones, which the clients then must have, "float32" exactly, "float16" and "int8" as differences
    from the initial ones. What rounding changes there is no error: clients answer to what they
    received, and the server goes on from its own exact weights.

    An answer that is no answer to this round, or not of this network, is left out; the log says
    why.

    Attributes:
        scale: logits of classes / regression values of the heads that `solve_head` finds. None: the
            first one asks the clients for the likelihood of held-out samples. Solved again, after a
            training on them, they would say little.
    """

    scale: float | None = None
    _initial: list[np.ndarray] = []  # that all clients have
    _exact: list[np.ndarray] = []  # of the round, as the server has them
    _sent: list[np.ndarray] = []  # as the clients have them
    _asked: frozenset[int] = frozenset()
    _done = 0  # rounds before a restart
    _backup: Path | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        backup: str | Path | None = None,
    ) -> Result:
        """As Flower's; from a `backup`, a file that is written each round, it goes on.

        Raises:
            ValueError: the file is no backup of this network.
        """
        self.known(initial_arrays)
        self._done, self._backup = 0, None if backup is None else Path(backup)
        arrays = self._restored(initial_arrays)

        def evaluated(server_round: int, given: ArrayRecord) -> MetricRecord | None:
            return evaluate_fn(self._done + server_round, given) if evaluate_fn else None

        result = super().start(
            grid,
            arrays,
            max(num_rounds - self._done, 0),
            timeout,
            train_config,
            evaluate_config,
            evaluated if evaluate_fn else None,
        )
        result.arrays = result.arrays or arrays
        self._save(result.arrays, max(num_rounds, self._done))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What FedAvg sends, of the weights those that are wanted."""
        self._save(arrays, server_round - 1 + self._done)
        sent = self.to_send(arrays, config)
        messages = list(super().configure_train(server_round + self._done, sent, config, grid))
        self._asked = frozenset(message.metadata.dst_node_id for message in messages)
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What FedAvg sends, of the weights those that are wanted."""
        sent = self.to_send(arrays, config)
        return super().configure_evaluate(server_round + self._done, sent, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The weights with the average changes; None where no answer is good."""
        sums = dict[int, np.ndarray]()
        weights, good = dict[int, float](), []
        for reply, (count, found) in self.read(replies, self._changes):
            for k, value in found.items():
                change = count * (value.astype(np.float64) - self._sent[k])
                sums[k] = sums[k] + change if k in sums else change
                weights[k] = weights.get(k, 0.0) + count
            good.append(reply.content)
        if not good:
            return None, None
        log(INFO, "\t> %d of %d tensors were trained", len(sums), len(self._exact))
        new = {
            str(k): Array((old + sums[k] / weights[k]).astype(old.dtype) if k in sums else old)
            for k, old in enumerate(self._exact)
        }
        return ArrayRecord(new), self.train_metrics_aggr_fn(good, self.weighted_by_key)

    def read(
        self, replies: Iterable[Message], reader: Callable[[RecordDict], Any]
    ) -> Iterator[tuple[Message, Any]]:
        """Answers to the weights that were sent, and what is read of each; the log names others."""
        valid, failed = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        if missing := self._asked - {one.metadata.src_node_id for one in (*valid, *failed)}:
            log(WARNING, "\t> Left out, no answer: node %s", ", ".join(map(str, sorted(missing))))
        base = fingerprint(self._sent)
        for reply in valid:
            try:
                said = reply.content.config_records["config"]["base"]
                if said != base:
                    raise ValueError(f"its answer is to other weights, {said} instead of {base}")
                found = reader(reply.content)
            except (ValueError, TypeError, LookupError, EOFError) as error:
                log(WARNING, "\t> Left out node %d: %r", reply.metadata.src_node_id, error)
            else:
                yield reply, found

    def _changes(self, content: RecordDict) -> tuple[float, dict[int, np.ndarray]]:
        """Samples and new values of an answer."""
        metrics = content.metric_records["metrics"]
        if any(isinstance(value, list) for value in metrics.values()):
            raise ValueError("metrics that are lists")
        count = float(metrics[self.weighted_by_key])
        if not 0.0 < count < 1e12:
            raise ValueError(f"{count} samples")
        return count, unpacked(content.array_records["arrays"], self._sent)

    def to_send(self, arrays: ArrayRecord, config: ConfigRecord) -> ArrayRecord:
        """Those of the weights that clients need; `config` says what they should have then."""
        self.known(arrays)
        down = str(config.get("down", "whole"))
        arguments.choice("down", down, _DOWN)
        self._exact = self._sent = arrays.to_numpy_ndarrays()
        if down != "whole":
            arrays, _ = packed(self._exact, self._initial, down)
            self._sent = with_changes(arrays, self._initial)
        config["base"] = fingerprint(self._sent)
        return arrays

    def known(self, arrays: ArrayRecord) -> None:
        """The first weights of the training, before its head was solved, are the initial ones."""
        self._initial = self._initial or arrays.to_numpy_ndarrays()

    def _save(self, arrays: ArrayRecord, rounds: int) -> None:
        """Keep the weights and the optimizer's moments after so many rounds."""
        if self._backup is None:
            return
        tensors = {name: array.numpy() for name, array in arrays.items()}
        for moment in _MOMENTS:
            held = getattr(self, moment, None) or {}
            tensors |= {f"{moment}.{name}": np.asarray(value) for name, value in held.items()}
        metadata = {_STATE: json.dumps([rounds, self.scale])}
        write_bytes(self._backup, safetensors.numpy.save(tensors, metadata=metadata))

    def _restored(self, initial: ArrayRecord) -> ArrayRecord:
        """The weights to begin with."""
        if self._backup is None or not self._backup.exists():
            return initial
        try:
            with safe_open(self._backup, framework="np") as opened:
                self._done, self.scale = json.loads((opened.metadata() or {})[_STATE])
                found = {name: opened.get_tensor(name) for name in opened.keys()}
            for name, array in initial.items():
                if (has := found[name].shape) != array.shape:
                    raise ValueError(f"weight {name} is {has} instead of {array.shape}")
        except (SafetensorError, ValueError, KeyError) as error:
            raise ValueError(
                "`backup` must be a file that a strategy wrote for this network. Received: "
                f"'{self._backup}', which is refused by {error!r}. Delete it to begin anew."
            ) from error
        for moment in _MOMENTS:
            held = {k: found[f"{moment}.{k}"] for k in initial if f"{moment}.{k}" in found}
            if held:
                setattr(self, moment, held)
        log(INFO, "Going on after round %d, from '%s'", self._done, self._backup)
        return ArrayRecord({name: Array(found[name]) for name in initial})


class FedElasticAdam(FedAdam, FedElastic):
    """Flower's `FedAdam` on the average changes of `FedElastic`.

    Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021.
    """

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As FedAdam, in float32; its correction of first rounds knows those before a restart."""
        arrays, metrics = super().aggregate_train(server_round + self._done, replies)
        if arrays is not None:
            pairs = zip(arrays.to_numpy_ndarrays(), self._exact)
            arrays = ArrayRecord([new.astype(old.dtype) for new, old in pairs])
        return arrays, metrics
