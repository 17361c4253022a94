"""Selections that survive a crash: kept in the model's checkpoints, taken up by the next `fit`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from elastic_tf.engine import replicas
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.files.json_form import to_json
from elastic_tf.selection.records import SelectionRecord
from elastic_tf.selection.selector import Selection

_KEY = "selection"


def remember(model: ElasticMixin, record: SelectionRecord, selected_at: int) -> None:
    """Let the model's checkpoints carry the present selection.

    Args:
        model: the model that is trained.
        record: the selection.
        selected_at: epoch of the last evaluation of the importance.
    """
    model.fit_state[_KEY] = {"record": to_json(record), "selected_at": selected_at}


def record_of(data: dict[str, Any]) -> SelectionRecord:
    """A record that `to_json` was made of."""
    values = dict(data)
    values["selection"] = _made(Selection, values["selection"])
    return _made(SelectionRecord, values)


def recall(model: ElasticMixin) -> tuple[SelectionRecord, int] | None:
    """What `remember` was given before `fit` was interrupted; None in a `fit` that starts."""
    data = model.fit_state.get(_KEY)
    if data is None:
        return None
    return record_of(data["record"]), int(data["selected_at"])


def check_replicas(
    model: ElasticMixin, *, deadline: bool, reprofile: bool, backup: bool = False
) -> None:
    """Refuse what one worker or replica cannot decide for all.

    Raises:
        ValueError: a deadline over several workers, or profiling or backups on several replicas.
    """
    strategy = model.distribute_strategy
    if deadline and replicas.spans_workers(strategy):
        raise ValueError(
            "`deadline` must be None over several workers: each has a clock of its own, and all "
            f"must stop at the same step. Received: {replicas.count(strategy)} replicas in "
            "several workers. Give `rho` instead."
        )
    if reprofile and replicas.count(strategy) > 1:
        raise ValueError(
            "`reprofile_every` must be None with several replicas: a profile is measured on one. "
            f"Received: {replicas.count(strategy)} replicas. Profile each device before."
        )
    if backup and replicas.count(strategy) > 1:
        raise ValueError(
            "`backup_dir` must be None with several replicas: it keeps one's place in the data. "
            f"Received: {replicas.count(strategy)} replicas. Add "
            "tf.keras.callbacks.BackupAndRestore, which begins the interrupted epoch again."
        )


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass from JSON; lists become arrays, of bool where they hold nothing else."""
    names = {field.name for field in dataclasses.fields(kind)}
    known = {name: value for name, value in values.items() if name in names}
    return kind(
        **{
            name: np.array(value) if isinstance(value, list) else value
            for name, value in known.items()
        }
    )
