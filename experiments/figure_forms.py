"""How each of the paper's figures and tables is drawn from runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from paper_specs import DATA, TARGETS, Picture, Training

from elastic_tf import plots
from elastic_tf.app.runs import Run, trained_plans
from elastic_tf.files import format_table

Runs = Mapping[Training, Run]
Form = Callable[[Picture, Runs], Any]
Values = Callable[[Run], Any]
# Shares of what full training ends with, where the paper's own accuracies are out of reach.
_SHARES = (0.90, 0.95, 0.98)
_MIB = 2**20


def _values(run: Run, key: str) -> np.ndarray:
    return np.array([np.nan if epoch[key] is None else epoch[key] for epoch in run.history])


def _accuracy(run: Run) -> np.ndarray:
    return 100 * _values(run, "val_accuracy")


def _epochs(run: Run) -> list[int]:
    return [epoch["epoch"] for epoch in run.history]


def _passed(run: Run) -> np.ndarray:
    """Seconds with evaluation, as the paper counts them."""
    return np.cumsum(_values(run, "seconds") + _values(run, "evaluation_seconds"))


def _seconds(run: Run) -> float:
    return run.result["seconds_with_evaluation"]


def _curves(x: Values, y: Values, label: str) -> Form:
    """A curve for each training, over its epochs or the time that has passed."""
    by_epoch = x is _epochs

    def drawn(picture: Picture, found: Runs) -> Figure:
        curves = {one.label: (x(run), y(run)) for one, run in found.items()}
        axis = "epoch" if by_epoch else "time (s)"
        return plots.lines(curves, x=axis, y=label, title=picture.title, is_whole=by_epoch)

    return drawn


def _bars(height: Values, label: str) -> Form:
    """A bar for each training, its accuracy above it."""

    def drawn(picture: Picture, found: Runs) -> Figure:
        heights = {one.label: height(run) for one, run in found.items()}
        notes = {one.label: f"{100 * run.result['accuracy']:.1f} %" for one, run in found.items()}
        return plots.bars({"": heights}, y=label, title=picture.title, notes={"": notes})

    return drawn


def _by_model(height: Values, label: str) -> Form:
    """A bar for each method, in a group for each model."""

    def drawn(picture: Picture, found: Runs) -> Figure:
        groups: dict[str, dict[str, float]] = {}
        for training, run in found.items():
            groups.setdefault(training.model, {})[training.label] = height(run)
        return plots.bars(groups, y=label, title=picture.title)

    return drawn


def selection_map(picture: Picture, found: Runs) -> Figure:
    """Which tensors were trained in which epochs."""
    (run,) = found.values()
    return plots.selection_map(trained_plans(run.history), title=picture.title)


def speedup_table(picture: Picture, found: Runs) -> str:
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
        *("data::data set", "target:.1%:accuracy", "baseline::best baseline"),
        *("baseline_seconds:.1f:its s", "elastic_seconds:.1f:ElasticTrainer s", "speedup:.2f"),
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


_ACCURACY = "testing accuracy (%)"
FORMS: dict[str, Form] = {
    "accuracy_over_time": _curves(_passed, _accuracy, _ACCURACY),
    "loss_over_time": _curves(_passed, lambda run: _values(run, "loss"), "training loss"),
    "accuracy_by_epoch": _curves(_epochs, _accuracy, _ACCURACY),
    "time_bars": _bars(_seconds, "training time (s)"),
    "model_accuracy": _by_model(lambda run: 100 * run.result["accuracy"], _ACCURACY),
    "model_time": _by_model(_seconds, "training time (s)"),
    "selection_map": selection_map,
    "memory_bars": _bars(lambda run: run.result["peak_memory_bytes"] / _MIB, "peak memory (MiB)"),
    "speedup_table": speedup_table,
}
