"""How each of the paper's figures and tables is drawn, from runs or from a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from figure_tables import profiling_table, speedup_table
from importance_drift import similarity
from matplotlib.figure import Figure
from paper_specs import DATA, Picture, Training

from elastic_tf import plots
from elastic_tf.runs.run import Run, trained_plans

Runs = Mapping[Training, Run]
Form = Callable[[Picture, Any], Any]
_GIGA, _MEGA = 1e9, 2**20


class NothingToDraw(Exception):
    """The runs do not hold what the picture shows."""


def accuracy_over_time(picture: Picture, found: Runs) -> Figure:
    """Testing accuracy after each epoch; time with evaluation, as the paper counts it."""
    curves = {
        training.label: (_passed(run), 100 * _values(run, "val_accuracy"))
        for training, run in found.items()
    }
    options = {"title": picture.title, "conclusion": plots.reached(curves)}
    return plots.lines(curves, x="time (s)", y="testing accuracy (%)", **options)


def loss_over_time(picture: Picture, found: Runs) -> Figure:
    """Training loss of each epoch."""
    curves = {one.label: (_passed(run), _values(run, "loss")) for one, run in found.items()}
    return plots.lines(curves, x="time (s)", y="training loss", title=picture.title)


def accuracy_by_epoch(picture: Picture, found: Runs) -> Figure:
    """Testing accuracy after each epoch, whatever its time."""
    curves = {
        one.label: (_epochs(run), 100 * _values(run, "val_accuracy")) for one, run in found.items()
    }
    return plots.lines(
        curves, x="epoch", y="testing accuracy (%)", title=picture.title, is_whole=True
    )


def progress(picture: Picture, found: Runs) -> Figure:
    """Accuracy after each epoch, in a group for each trained portion, with the seconds it took."""
    groups, notes = {}, {}
    for run in found.values():
        count = int(np.mean([plan.mask.sum() for plan in trained_plans(run.history)]))
        name = f"last {count} tensors\n{_values(run, 'seconds').mean():.0f} s per epoch"
        accuracies = 100 * _values(run, "val_accuracy")
        groups[name] = {f"epoch {k + 1}": float(value) for k, value in enumerate(accuracies)}
        notes[name] = {label: f"{value:.1f}" for label, value in groups[name].items()}
    return plots.bars(groups, y="testing accuracy (%)", title=picture.title, notes=notes)


def importance_similarity(picture: Picture, found: Runs) -> Figure:
    """Cosine similarity of importance against the epochs between two evaluations."""
    curves = {}
    for training, run in found.items():
        worths = [selection["importance"] for selection in run.selections]
        lags = range(1, max(2, len(worths) // 2 + 1))
        values = [similarity(worths, lag) for lag in lags if lag < len(worths)]
        curves[f"{training.model}, {DATA[training.data]}"] = (list(lags)[: len(values)], values)
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
    ticks = [row["resolution"] for row in rows]
    share = [100 * row["seconds"] / measured["training_seconds"] for row in rows]
    ratio = [100 * row["achieved_ratio"] for row in rows]
    ours = measured["ours"]
    ends = [ticks[0], ticks[-1]]
    curves = {
        "the paper's recurrence: time / training time": (ticks, share),
        "the paper's recurrence: step ratio": (ticks, ratio),
        "elastic_tf: time / training time": (
            ends,
            [100 * ours["seconds"] / measured["training_seconds"]] * 2,
        ),
        "elastic_tf: step ratio": (ends, [100 * ours["achieved_ratio"]] * 2),
    }
    title = f"{picture.title} (rho={measured['rho']:g})"
    return plots.lines(curves, x="resolution T_q", y="%", title=title, is_log=True)


def time_bars(picture: Picture, found: Runs) -> Figure:
    """Seconds of a training, its accuracy above the bar."""
    seconds = {one.label: run.result["seconds_with_evaluation"] for one, run in found.items()}
    return _with_accuracy(picture, found, seconds, "training time (s)")


def flops_bars(picture: Picture, found: Runs) -> Figure:
    """Operations of a training, its accuracy above the bar."""
    flops = {one.label: run.result["flops"] / 1e12 for one, run in found.items()}
    return _with_accuracy(picture, found, flops, "operations of a training (10^12)")


def flops_by_epoch(picture: Picture, found: Runs) -> Figure:
    """Operations of a step in each epoch."""
    curves = {}
    for training, run in found.items():
        flops = np.array(run.result["flops_by_epoch"])
        curves[training.label] = (_epochs(run), flops / _GIGA)
    label = "operations of a step (10^9)"
    return plots.lines(curves, x="epoch", y=label, title=picture.title, is_whole=True)


def model_accuracy(picture: Picture, found: Runs) -> Figure:
    """Accuracy of each method, in a group for each model."""
    groups: dict[str, dict[str, float]] = {}
    for training, run in found.items():
        groups.setdefault(training.model, {})[training.label] = 100 * run.result["accuracy"]
    return plots.bars(groups, y="testing accuracy (%)", title=picture.title)


def model_time(picture: Picture, found: Runs) -> Figure:
    """Seconds of each method, in a group for each model."""
    groups: dict[str, dict[str, float]] = {}
    for training, run in found.items():
        seconds = run.result["seconds_with_evaluation"]
        groups.setdefault(training.model, {})[training.label] = seconds
    return plots.bars(groups, y="training time (s)", title=picture.title)


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


def _with_accuracy(picture: Picture, found: Runs, heights: Mapping[str, float], y: str) -> Figure:
    accuracy = {one.label: run.result["accuracy"] for one, run in found.items()}
    notes = {"": {label: f"{100 * accuracy[label]:.1f} %" for label in heights}}
    return plots.bars({"": dict(heights)}, y=y, title=picture.title, notes=notes)


def _values(run: Run, key: str) -> np.ndarray:
    return np.array([np.nan if epoch[key] is None else epoch[key] for epoch in run.history])


def _epochs(run: Run) -> list[int]:
    return [epoch["epoch"] for epoch in run.history]


def _passed(run: Run) -> np.ndarray:
    return np.cumsum(_values(run, "seconds") + _values(run, "evaluation_seconds"))


FORMS: dict[str, Form] = {
    "accuracy_over_time": accuracy_over_time,
    "loss_over_time": loss_over_time,
    "accuracy_by_epoch": accuracy_by_epoch,
    "progress": progress,
    "similarity": importance_similarity,
    "probe_sizes": probe_sizes,
    "subproblems": subproblems,
    "resolutions": resolutions,
    "time_bars": time_bars,
    "flops_bars": flops_bars,
    "flops_by_epoch": flops_by_epoch,
    "model_accuracy": model_accuracy,
    "model_time": model_time,
    "selection_map": selection_map,
    "memory_bars": memory_bars,
    "energy_bars": energy_bars,
    "profiling_table": profiling_table,
    "speedup_table": speedup_table,
}
