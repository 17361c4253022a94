"""Every public function with a call that is right, and the kind of each argument.

A function that is missing here fails a test. `OTHER_TESTS` names what is called otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_values as kinds
import numpy as np
import tensorflow as tf
from networks import crossentropy, images, mask_of, network
from test_images import write_folder

from elastic_tf import (
    activations,
    budget,
    datasets,
    files,
    flops,
    importance,
    knapsack,
    optimizers,
    profiler,
    ranges,
    runs,
    selection,
    stopwatch,
    timing,
    zoo,
)
from elastic_tf.baselines import fixed
from elastic_tf.callback import ElasticCallback
from elastic_tf.files import write_json
from elastic_tf.model import ElasticModel
from elastic_tf.records import SelectionRecord
from elastic_tf.timing import TimingProfile

N = 10  # tensors of the network


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that is right.

    Attributes:
        name: module and function.
        function: what is called.
        given: makes the arguments, in a directory of its own.
        kinds: of the arguments that are replaced, by name.
        also: words under which a message may speak of an argument.
        holds: what is true of every result.
        runs: whether a call that is accepted takes long: values made at random are left out.
    """

    name: str
    function: Callable[..., Any]
    given: Callable[[Path], dict[str, Any]]
    kinds: dict[str, kinds.Kind]
    also: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    holds: Callable[[Any], bool] = lambda result: True
    runs: bool = False


@functools.cache
def model() -> ElasticModel:
    made = ElasticModel.from_model(network())
    made.compile(tf.keras.optimizers.SGD(0.05, momentum=0.9), crossentropy())
    x, y = batch()
    made.train_on_batch(x, y)
    return made


def batch() -> tuple[np.ndarray, np.ndarray]:
    x, y = images()
    return x[:4], y[:4]


def table() -> TimingProfile:
    return TimingProfile.from_chain(t_dw=np.ones(N), t_dy=np.ones(N), t_forward=5.0)


def worth() -> np.ndarray:
    return np.linspace(-1.0, 3.0, N)


def head() -> np.ndarray:
    return mask_of(model(), "head")


def record() -> SelectionRecord:
    return SelectionRecord(
        epoch=0,
        rho=0.9,
        selection=selection.select_tensors(worth(), table(), 0.9),
        importance=worth(),
        predicted_ratio=0.8,
        seconds_importance=1.0,
        seconds_solve=0.1,
    )


def saved(folder: Path) -> Path:
    table().save(folder / "profile.json")
    return folder / "profile.json"


def is_selection(found: Any) -> bool:
    return found.mask.dtype == bool and found.mask.any() and found.time <= found.budget


def is_worth(found: Any) -> bool:
    return found.dtype == np.float64 and found.shape == (N,) and bool(np.isfinite(found).all())


def is_mask(found: Any) -> bool:
    return found.dtype == bool and found.ndim == 1


def is_share(found: Any) -> bool:
    return 0.0 < found <= 1.0


def is_number(found: Any) -> bool:
    return bool(np.isfinite(found))


def labelled(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((count, 8, 8, 1), np.uint8), np.arange(count) % 3


def archive(folder: Path) -> Path:
    (x, y), (x_test, y_test) = labelled(6), labelled(3)
    np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return folder / "a.npz"


def taped() -> dict[str, Any]:
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2)
    optimizer = tf.keras.optimizers.SGD(0.1)
    return {"optimizer": optimizer, "tape": tape, "loss": loss, "variables": [variable]}


def built() -> dict[str, Any]:
    given = taped()
    optimizers.build(given["optimizer"], given["variables"])
    return {
        "optimizer": given["optimizer"],
        "gradients": [tf.ones(2)],
        "variables": given["variables"],
    }


def finalized(**given: Any) -> None:
    with optimizers.finalizing_only(**given):
        pass


def run(folder: Path) -> runs.Run:
    return runs.create(folder / "run", {"seed": 1})


PATHS = {"path": kinds.path}
DATA = {"x": kinds.samples, "y": kinds.samples, "sample_weight": kinds.samples}
PARTS = ("samples", "batch", "loss", "model")  # what a message calls the data
SPOKEN = {name: PARTS for name in ("x", "y", "sample_weight", "data", "gradient_data")}
PIPELINE = {
    "batch_size": kinds.count,
    "class_names": kinds.listed,
    "seed": kinds.count,
    "flip": kinds.flag,
    "augment": kinds.listed,
    "validation_share": kinds.number,
}


def probed() -> dict[str, Any]:
    x, y = batch()
    return {"model": model(), "x": x, "y": y, "sample_weight": np.ones(4, np.float32)}


CALLS = (
    Call(
        "timing.TimingProfile.from_chain",
        TimingProfile.from_chain,
        lambda _: {"t_dw": np.ones(4), "t_dy": np.ones(4), "t_forward": 2.0},
        {"t_dw": kinds.numbers, "t_dy": kinds.numbers, "t_forward": kinds.number},
        holds=lambda found: is_number(found.t_full) and found.t_full > 0,
        also={"t_dw": ("times",), "t_dy": ("times",), "t_forward": ("times",)},
    ),
    Call(
        "timing.TimingProfile",
        TimingProfile,
        lambda _: {"t_forward": 5.0, "sets": table().sets, "count": N},
        {"t_forward": kinds.number, "count": kinds.count, "sets": kinds.listed},
        holds=lambda found: is_number(found.t_full) and found.t_dw.shape == (found.count,),
        also={"t_forward": ("times",), "count": ("sets",)},
    ),
    Call(
        "timing.TimingProfile.step_time",
        lambda mask: table().step_time(mask),
        lambda _: {"mask": worth() > 0},
        {"mask": kinds.mask},
        holds=lambda found: 5.0 <= found <= 25.0,
    ),
    Call(
        "timing.TimingProfile.save",
        lambda path: table().save(path),
        lambda d: {"path": d / "p"},
        PATHS,
    ),
    Call("timing.TimingProfile.load", TimingProfile.load, lambda d: {"path": saved(d)}, PATHS),
    Call(
        "timing.TimingProfile.check",
        lambda **given: table().check(**given),
        lambda _: {"model": model(), "batch_size": 4, "input_shape": [(6, 6, 2)]},
        {"model": kinds.thing, "batch_size": kinds.count, "input_shape": kinds.listed},
    ),
    Call(
        "timing.TimingProfile.check_data",
        lambda **given: table().check_data(**given),
        lambda _: {"batch_size": 4, "input_shape": [(6, 6, 2)]},
        {"batch_size": kinds.count, "input_shape": kinds.listed},
    ),
    Call(
        "timing.tensor_specs",
        timing.tensor_specs,
        lambda _: {"model": model()},
        {"model": kinds.thing},
    ),
    Call(
        "timing.optimizer_name",
        timing.optimizer_name,
        lambda _: {"model": model()},
        {"model": kinds.thing},
    ),
    Call(
        "selection.select_tensors",
        selection.select_tensors,
        lambda _: {
            "importance": worth(),
            "profile": table(),
            "rho": 0.7,
            "ticks": 1000,
            "required": worth() > 2.9,
        },
        {
            "importance": kinds.numbers,
            "profile": kinds.thing,
            "rho": kinds.number,
            "ticks": kinds.count,
            "required": kinds.mask,
        },
        holds=is_selection,
        also={"required": ("required tensors",)},
    ),
    Call(
        "selection.smallest_feasible_rho",
        selection.smallest_feasible_rho,
        lambda _: {"profile": table(), "importance": worth(), "required": worth() > 2.9},
        {"profile": kinds.thing, "importance": kinds.numbers, "required": kinds.mask},
        holds=is_share,
    ),
    Call(
        "selection.check_rho",
        selection.check_rho,
        lambda _: {"rho": 0.5, "where": " here"},
        {"rho": kinds.number, "where": kinds.text},
    ),
    Call(
        "knapsack.relax",
        knapsack.relax,
        lambda _: {"worth": np.arange(1.0, 5.0), "cost": np.ones(4), "room": 2.5},
        {"worth": kinds.numbers, "cost": kinds.numbers, "room": kinds.number},
        holds=lambda found: is_number(found.bound) and 0 <= found.whole <= len(found.order),
    ),
    Call(
        "knapsack.solve",
        knapsack.solve,
        lambda _: {
            "worth": np.arange(1.0, 5.0),
            "cost": np.ones(4),
            "room": 2.5,
            "floor": 0.0,
            "states": 100,
        },
        {
            "worth": kinds.numbers,
            "cost": kinds.numbers,
            "room": kinds.number,
            "floor": kinds.number,
            "states": kinds.count,
        },
        holds=lambda found: is_number(found.bound),
    ),
    Call(
        "importance.loss_decrease",
        importance.loss_decrease,
        lambda _: {
            **probed(),
            "gradient": "other",
            "gradient_data": batch(),
            "steps": 1,
            "micro_batch_size": 4,
        },
        {
            **DATA,
            "model": kinds.thing,
            "gradient": kinds.text,
            "gradient_data": kinds.listed,
            "steps": kinds.count,
            "micro_batch_size": kinds.count,
        },
        holds=is_worth,
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "importance.gradient_magnitude",
        importance.gradient_magnitude,
        lambda _: {**probed(), "micro_batch_size": 4},
        {**DATA, "model": kinds.thing, "micro_batch_size": kinds.count},
        holds=is_worth,
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "importance.weight_magnitude",
        importance.weight_magnitude,
        lambda _: {"model": model(), "x": batch()[0], "y": batch()[1]},
        {"model": kinds.thing, "x": kinds.samples, "y": kinds.samples},
        holds=is_worth,
    ),
    Call(
        "importance.random",
        importance.random,
        lambda _: {"model": model(), "x": batch()[0], "y": batch()[1], "seed": 1},
        {"model": kinds.thing, "x": kinds.samples, "y": kinds.samples, "seed": kinds.count},
        holds=is_worth,
    ),
    Call(
        "optimizers.sgdw",
        optimizers.sgdw,
        lambda _: {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
        {
            "learning_rate": kinds.number,
            "momentum": kinds.number,
            "weight_decay": kinds.number,
            "nesterov": kinds.flag,
        },
    ),
    Call(
        "optimizers.by_name",
        optimizers.by_name,
        lambda _: {"name": "adam", "learning_rate": 0.1},
        {"name": kinds.text, "learning_rate": kinds.number},
    ),
    Call(
        "optimizers.check",
        optimizers.check,
        lambda _: {"optimizer": tf.keras.optimizers.SGD()},
        {"optimizer": kinds.thing},
    ),
    Call(
        "optimizers.build",
        optimizers.build,
        lambda _: {name: item for name, item in built().items() if name != "gradients"},
        {"optimizer": kinds.thing, "variables": kinds.listed},
    ),
    Call(
        "optimizers.gradients",
        optimizers.gradients,
        lambda _: taped(),
        {
            "optimizer": kinds.thing,
            "tape": kinds.thing,
            "loss": kinds.thing,
            "variables": kinds.listed,
        },
    ),
    Call(
        "optimizers.apply_selected",
        optimizers.apply_selected,
        lambda _: built(),
        {"optimizer": kinds.thing, "gradients": kinds.listed, "variables": kinds.listed},
        also={"variables": ("variables",)},
    ),
    Call(
        "optimizers.finalizing_only",
        finalized,
        lambda _: {"optimizer": built()["optimizer"], "trained": {1, 2}, "before": lambda: None},
        {"optimizer": kinds.thing, "trained": kinds.listed, "before": kinds.text},
    ),
    *(
        Call(
            f"optimizers.{function.__name__}",
            function,
            lambda _: {"optimizer": built()["optimizer"]},
            {"optimizer": kinds.thing},
        )
        for function in (optimizers.state, optimizers.rate, optimizers.unwrapped)
    ),
    Call(
        "datasets.image_folder",
        datasets.image_folder,
        lambda folder: {
            "path": write_folder(folder / "images"),
            "image_size": 8,
            "batch_size": 2,
            "seed": 0,
            "flip": False,
            "augment": (),
            "validation_share": 0.0,
            "cache": True,
            "on_bad_image": "raise",
        },
        {
            **{name: kind for name, kind in PIPELINE.items() if name != "class_names"},
            **PATHS,
            "image_size": kinds.count,
            "cache": kinds.flag,
            "on_bad_image": kinds.text,
        },
        also={"path": ("data", "folder")},
        runs=True,
    ),
    Call(
        "datasets.from_arrays",
        datasets.from_arrays,
        lambda _: {
            "train": labelled(6),
            "test": labelled(3),
            "batch_size": 2,
            "class_names": ["a", "b", "c"],
            "seed": 0,
            "flip": False,
            "augment": (),
            "validation_share": 0.0,
        },
        {**PIPELINE, "train": kinds.listed, "test": kinds.listed},
        runs=True,
    ),
    Call("datasets.arrays", datasets.arrays, lambda d: {"path": archive(d)}, PATHS),
    Call(
        "datasets.digits",
        datasets.digits,
        lambda _: {"image_size": 8, "shift": datasets.Shift(), "test_share": 0.3, "seed": 0},
        {
            "image_size": kinds.count,
            "shift": kinds.thing,
            "test_share": kinds.number,
            "seed": kinds.count,
        },
        runs=True,
    ),
    Call(
        "zoo.build",
        zoo.build,
        lambda _: {
            "name": "digits_resnet",
            "classes": 3,
            "input_size": 16,
            "alpha": 1.0,
            "weights": None,
            "bn_training": False,
            "dropout": 0.0,
        },
        {
            "name": kinds.text,
            "classes": kinds.count,
            "input_size": kinds.count,
            "alpha": kinds.number,
            "weights": kinds.path,
            "bn_training": kinds.flag,
            "dropout": kinds.number,
        },
        runs=True,
    ),
    Call(
        "zoo.head_tensors",
        zoo.head_tensors,
        lambda _: {"model": model()},
        {"model": kinds.thing},
        holds=is_mask,
    ),
    Call(
        "runs.create",
        runs.create,
        lambda d: {"path": d / "new", "config": {"seed": 1}},
        {**PATHS, "config": kinds.listed},
    ),
    Call("runs.load", runs.load, lambda d: {"path": run(d).path}, PATHS, also={"path": ("run",)}),
    Call(
        "runs.peak_memory_bytes",
        runs.peak_memory_bytes,
        lambda _: {},
        {},
        holds=lambda found: found > 0,
    ),
    Call(
        "runs.format_table",
        runs.format_table,
        lambda _: {"rows": [{"a": 1.0}], "columns": [runs.Column("a", "A", ".1f")]},
        {"rows": kinds.listed, "columns": kinds.listed},
        holds=lambda found: isinstance(found, str),
    ),
    Call(
        "runs.Run.append_epoch",
        lambda run, epoch: run.append_epoch(epoch),
        lambda d: {"run": run(d), "epoch": {"loss": 1.0}},
        {"epoch": kinds.listed},
    ),
    Call(
        "runs.Run.append_selection",
        lambda run, record: run.append_selection(record),
        lambda d: {"run": run(d), "record": record()},
        {"record": kinds.thing},
    ),
    Call(
        "runs.Run.finish",
        lambda run, result: run.finish(result),
        lambda d: {"run": run(d), "result": {"a": 1.0}},
        {"result": kinds.listed},
    ),
    Call(
        "files.write_text",
        files.write_text,
        lambda d: {"path": d / "a", "text": "a"},
        {**PATHS, "text": kinds.text},
    ),
    Call(
        "files.write_json",
        write_json,
        lambda d: {"path": d / "a", "data": [1]},
        {**PATHS, "data": kinds.listed},
    ),
    Call(
        "files.append_line",
        files.append_line,
        lambda d: {"path": d / "a", "text": "a"},
        {**PATHS, "text": kinds.text},
    ),
    Call("files.as_utf8", files.as_utf8, lambda _: {"text": "a"}, {"text": kinds.text}),
    Call(
        "profiler.profile_model",
        profiler.profile_model,
        lambda _: {**probed(), "repeats": 1, "time_limit": 1.0, "calibrate": False},
        {
            **DATA,
            "model": kinds.thing,
            "repeats": kinds.count,
            "time_limit": kinds.number,
            "calibrate": kinds.flag,
        },
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "stopwatch.measure_ratios",
        stopwatch.measure_ratios,
        lambda _: {**probed(), "masks": [head()], "repeats": 1},
        {**DATA, "model": kinds.thing, "masks": kinds.listed, "repeats": kinds.count},
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "activations.activations",
        activations.activations,
        lambda _: {"model": model(), "data": batch(), "mask": head()},
        {"model": kinds.thing, "data": kinds.listed, "mask": kinds.mask},
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "activations.activation_bytes",
        activations.activation_bytes,
        lambda _: {"model": model(), "data": batch(), "mask": head()},
        {"model": kinds.thing, "data": kinds.listed, "mask": kinds.mask},
        holds=lambda found: found >= 0,
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "flops.step_flops",
        flops.step_flops,
        lambda _: {**probed(), "mask": head()},
        {**DATA, "model": kinds.thing, "mask": kinds.mask},
        holds=lambda found: found.forward > 0,
        also=SPOKEN,
        runs=True,
    ),
    Call("ranges.to_ranges", ranges.to_ranges, lambda _: {"mask": head()}, {"mask": kinds.mask}),
    Call(
        "ranges.from_ranges",
        ranges.from_ranges,
        lambda _: {"ranges": [[0, 1]], "count": 4},
        {"ranges": kinds.listed, "count": kinds.count},
        holds=is_mask,
        also={"count": ("ranges",)},
    ),
    Call(
        "budget.rho_at",
        budget.rho_at,
        lambda _: {"rho": 0.5, "epoch": 1},
        {"rho": kinds.number, "epoch": kinds.count},
        also={"rho": ("schedule",)},
        holds=is_share,
    ),
    Call(
        "budget.step_budget",
        budget.step_budget,
        lambda _: {"rho": 0.5, "profile": table()},
        {"rho": kinds.number, "profile": kinds.thing},
    ),
    Call(
        "budget.backward_budget",
        budget.backward_budget,
        lambda _: {"rho": 0.5, "profile": table()},
        {"rho": kinds.number, "profile": kinds.thing},
    ),
    Call("budget.doubt", budget.doubt, lambda _: {"profile": table()}, {"profile": kinds.thing}),
    Call(
        "budget.rho_for_deadline",
        budget.rho_for_deadline,
        lambda _: {
            "seconds": 10.0,
            "steps": 10,
            "full_step_seconds": 1.0,
            "other_seconds": 1.0,
            "smallest": 0.1,
        },
        {
            "seconds": kinds.number,
            "steps": kinds.count,
            "full_step_seconds": kinds.number,
            "other_seconds": kinds.number,
            "smallest": kinds.number,
        },
        holds=is_share,
        also={name: ("deadline",) for name in ("seconds", "other_seconds", "full_step_seconds")},
    ),
    *(
        Call(
            f"baselines.fixed.{function.__name__}",
            function,
            lambda _: {"model": model()},
            {"model": kinds.thing},
            holds=is_mask,
        )
        for function in (fixed.bn_bias_tensors, fixed.bias_tensors, fixed.scale_tensors)
    ),
    Call(
        "baselines.fixed.last_tensors",
        fixed.last_tensors,
        lambda _: {"model": model(), "profile": table(), "rho": 0.8},
        {"model": kinds.thing, "profile": kinds.thing, "rho": kinds.number},
        holds=is_mask,
    ),
    Call(
        "baselines.fixed.is_among",
        fixed.is_among,
        lambda _: {"model": model(), "variables": []},
        {"model": kinds.thing, "variables": kinds.listed},
        holds=is_mask,
    ),
    Call(
        "model.ElasticModel.from_model",
        ElasticModel.from_model,
        lambda _: {"model": network()},
        {"model": kinds.thing},
    ),
    Call(
        "mixin.ElasticMixin.set_mask",
        lambda mask: model().set_mask(mask),
        lambda _: {"mask": model().mask},
        {"mask": kinds.mask},
    ),
    Call(
        "callback.ElasticCallback",
        ElasticCallback,
        lambda d: {
            "profile": table(),
            "interval": 2,
            "probe": batch(),
            "probe_size": 4,
            "smoothing": 0.5,
            "control": 0.05,
            "band": 0.05,
            "reprofile_every": 2,
            "backup_dir": d / "backup",
            "backup_every": 5,
            "backup_seconds": 5.0,
            "nan": "stop",
            "seed": 1,
            "rho": 0.5,
        },
        {
            "profile": kinds.thing,
            "interval": kinds.count,
            "probe_size": kinds.count,
            "smoothing": kinds.number,
            "control": kinds.number,
            "band": kinds.number,
            "reprofile_every": kinds.count,
            "backup_every": kinds.count,
            "backup_seconds": kinds.number,
            "nan": kinds.text,
            "seed": kinds.count,
            "rho": kinds.number,
        },
    ),
)
