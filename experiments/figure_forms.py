"""How each of the paper's figures and tables is drawn, from runs or from a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from importance_drift import similarity
from matplotlib.figure import Figure
from paper_specs import DATA, TARGETS, Picture, Training

from elastic_tf import plots
from elastic_tf.app.runs.run import Run, trained_plans
from elastic_tf.files.table import Column, format_table

Runs = Mapping[Training, Run]
Form = Callable[[Picture, Any], Any]
Values = Callable[[Run], Any]
_GIGA, _MEGA = 1e9, 2**20
# Shares of what full training ends with, where the paper's own accuracies are out of reach.
_SHARES = (0.90, 0.95, 0.98)


class NothingToDraw(Exception):
    """The runs do not hold what the picture shows."""


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


def _curves(x: Values, y: Values, label: str, *, says_reached: bool = False) -> Form:
    """A curve for each training, over its epochs or the time that has passed."""
    by_epoch = x is _epochs

    def drawn(picture: Picture, found: Runs) -> Figure:
        curves = {one.label: (x(run), y(run)) for one, run in found.items()}
        options = {"conclusion": plots.reached(curves)} if says_reached else {}
        axis = "epoch" if by_epoch else "time (s)"
        return plots.lines(
            curves, x=axis, y=label, title=picture.title, is_whole=by_epoch, **options
        )

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


def progress(picture: Picture, found: Runs) -> Figure:
    """Accuracy after each epoch, in a group for each trained portion, with the seconds it took."""
    groups, notes = {}, {}
    for run in found.values():
        count = int(np.mean([plan.mask.sum() for plan in trained_plans(run.history)]))
        name = f"last {count} tensors\n{_values(run, 'seconds').mean():.0f} s per epoch"
        groups[name] = {f"epoch {k + 1}": float(value) for k, value in enumerate(_accuracy(run))}
        notes[name] = {label: f"{value:.1f}" for label, value in groups[name].items()}
    return plots.bars(groups, y="testing accuracy (%)", title=picture.title, notes=notes)


def importance_similarity(picture: Picture, found: Runs) -> Figure:
    """Cosine similarity of importance against the epochs between two evaluations."""
    curves = {}
    for training, run in found.items():
        worths = [selection["importance"] for selection in run.selections]
        lags = [lag for lag in range(1, max(2, len(worths) // 2 + 1)) if lag < len(worths)]
        values = [similarity(worths, lag) for lag in lags]
        curves[f"{training.model}, {DATA[training.data]}"] = (lags, values)
    label = "cosine similarity of importance"
    return plots.lines(curves, x="interval (epochs)", y=label, title=picture.title, is_whole=True)


def probe_sizes(picture: Picture, found: Runs) -> Figure:
    """Similarity of importance in neighbouring epochs, and its share of the time, by batch size."""
    groups: dict[str, dict[str, float]] = {}
    for training, run in found.items():
        worths = [selection["importance"] for selection in run.selections]
        seconds = sum(selection["seconds_importance"] for selection in run.selections)
        groups[f"{training.probe_size} images"] = {
            "cosine similarity (%)": 100 * similarity(worths, 1),
            "share of the training time (%)": 100 * seconds / _values(run, "seconds").sum(),
        }
    return plots.bars(groups, y="%", title=picture.title)


def subproblems(picture: Picture, measured: Mapping[str, Any]) -> Figure:
    """Subproblems with and without those that are skipped."""
    groups = {
        f"T_q={row['resolution']:g}": {
            "all": row["all_subproblems"] / 1e3,
            "without invalid and redundant ones": row["subproblems"] / 1e3,
        }
        for row in measured["rows"]
    }
    return plots.bars(groups, y="subproblems (thousands)", title=picture.title)


def resolutions(picture: Picture, measured: Mapping[str, Any]) -> Figure:
    """Time of the solver relative to the training, and the step ratio that is reached."""
    rows = measured["rows"]
    ticks, of_training = [row["resolution"] for row in rows], 0.1 / measured["training_seconds"]
    curves = {
        f"{who}: {what}": (ticks, [scale * row[f"{key}{name}"] for row in rows])
        for who, key in (("the paper's recurrence", ""), ("elastic_tf", "our_"))
        for what, name, scale in (
            ("time / training time", "milliseconds", of_training),
            ("step ratio", "achieved", 100.0),
        )
    }
    title = f"{picture.title} (rho={measured['rho']:g})"
    return plots.lines(curves, x="resolution T_q", y="%", title=title, is_log=True)


def selection_map(picture: Picture, found: Runs) -> Figure:
    """Which tensors were trained in which epochs."""
    (run,) = found.values()
    return plots.selection_map(trained_plans(run.history), title=picture.title)


def memory_bars(picture: Picture, found: Runs) -> Figure:
    """Peak resident memory of each training's process, and the activations in it."""
    shown = {"peak_memory_bytes": "peak resident memory", "activation_bytes": "activations"}
    groups = {
        one.label: {
            label: run.result[key] / _MEGA
            for key, label in shown.items()
            if run.result[key] is not None
        }
        for one, run in found.items()
    }
    return plots.bars(groups, y="memory (MiB)", title=picture.title)


def energy_bars(picture: Picture, found: Runs) -> Figure:
    """Energy of each training, where there was a sensor.

    Raises:
        NothingToDraw: there was none.
    """
    energies = {one.label: run.result["energy_joules"] for one, run in found.items()}
    if not all(isinstance(energy, float) for energy in energies.values()):
        raise NothingToDraw("there was no energy sensor, or it failed")
    groups = {label: {"energy": energy / 1e3} for label, energy in energies.items()}
    return plots.bars(groups, y="energy (kJ)", title=picture.title)


def profiling_table(picture: Picture, measured: Mapping[str, Any]) -> str:
    """Table 1: overhead of telling the times of steps."""
    rows = [{"model": name, **values} for name, values in measured.items()]
    columns = (
        Column("model", "NN model"),
        Column("overhead", "overhead", ".2%"),
        Column("seconds", "profiling, s", ".2f"),
        Column("epoch_seconds", "epoch, s", ".1f"),
    )
    return f"{picture.title}\n{format_table(rows, columns)}"


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


_ACCURACY = "testing accuracy (%)"
FORMS: dict[str, Form] = {
    "accuracy_over_time": _curves(_passed, _accuracy, _ACCURACY, says_reached=True),
    "loss_over_time": _curves(_passed, lambda run: _values(run, "loss"), "training loss"),
    "accuracy_by_epoch": _curves(_epochs, _accuracy, _ACCURACY),
    "flops_by_epoch": _curves(
        _epochs,
        lambda run: np.array(run.result["flops_by_epoch"]) / _GIGA,
        "operations of a step (10^9)",
    ),
    "time_bars": _bars(_seconds, "training time (s)"),
    "flops_bars": _bars(lambda run: run.result["flops"] / 1e12, "operations of a training (10^12)"),
    "model_accuracy": _by_model(lambda run: 100 * run.result["accuracy"], _ACCURACY),
    "model_time": _by_model(_seconds, "training time (s)"),
    "progress": progress,
    "similarity": importance_similarity,
    "probe_sizes": probe_sizes,
    "subproblems": subproblems,
    "resolutions": resolutions,
    "selection_map": selection_map,
    "memory_bars": memory_bars,
    "energy_bars": energy_bars,
    "profiling_table": profiling_table,
    "speedup_table": speedup_table,
}
