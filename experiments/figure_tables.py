"""The paper's two tables, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paper_specs import DATA, TARGETS, Picture, Training

from elastic_tf.files.table import Column, format_table
from elastic_tf.runs.run import Run

# Shares of what full training ends with, where the paper's own accuracies are out of reach.
_SHARES = (0.90, 0.95, 0.98)


def profiling_table(picture: Picture, measured: Mapping[str, Any]) -> str:
    """Table 1: overhead of profiling every epoch."""
    rows = [{"model": name, **values} for name, values in measured.items()]
    columns = (
        Column("model", "NN model"),
        Column("overhead", "overhead", ".2%"),
        Column("seconds", "profiling, s", ".2f"),
        Column("epoch_seconds", "epoch, s", ".1f"),
    )
    return f"{picture.title}\n{format_table(rows, columns)}"


def speedup_table(picture: Picture, found: Mapping[Training, Run]) -> str:
    """Table 2: the best baseline's time to an accuracy / ElasticTrainer's.

    Where no method reaches the paper's accuracies, the targets are 90, 95 and 98 % of what full
    training ends with.
    """
    rows = []
    for data, name in DATA.items():
        runs = {one.method: run for one, run in found.items() if one.data == data}
        if not runs:
            continue
        full = runs["full"].result["accuracy"]
        best = max(epoch["val_accuracy"] for run in runs.values() for epoch in run.history)
        own = TARGETS[data]
        for target in own if best >= own[0] else [share * full for share in _SHARES]:
            times = {method: seconds_to(run.history, target) for method, run in runs.items()}
            elastic = times.pop("elastictrainer")
            reached = {method: time for method, time in times.items() if time is not None}
            best_one = min(reached, key=lambda method: reached[method], default=None)
            rows.append(
                {
                    "data": name,
                    "target": target,
                    "baseline": best_one or "none",
                    "baseline_seconds": reached.get(best_one),
                    "elastic_seconds": elastic,
                    "speedup": reached[best_one] / elastic if best_one and elastic else None,
                }
            )
    columns = (
        Column("data", "data set"),
        Column("target", "accuracy", ".1%"),
        Column("baseline", "best baseline"),
        Column("baseline_seconds", "its s", ".1f"),
        Column("elastic_seconds", "ElasticTrainer s", ".1f"),
        Column("speedup", "speedup", ".2f"),
    )
    return f"{picture.title}\n{format_table(rows, columns)}"


def seconds_to(history: Sequence[Mapping[str, Any]], target: float) -> float | None:
    """Training seconds after which the accuracy was first at least `target`; None if never."""
    passed = 0.0
    for epoch in history:
        passed += epoch["seconds"]
        if epoch["val_accuracy"] >= target:
            return passed
    return None
