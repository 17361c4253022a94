"""The functions that give models and data or keep what comes out, each with a right call."""

from __future__ import annotations

from pathlib import Path

import hostile_values as kinds
import numpy as np
from public_call import PATHS, Call, is_mask, model, table, worth
from test_images import write_folder

from elastic_tf.data import datasets
from elastic_tf.files import atomic
from elastic_tf.files.atomic import write_json
from elastic_tf.runs import run as runs
from elastic_tf.selection import selector
from elastic_tf.selection.records import SelectionRecord
from elastic_tf.zoo import models

PIPELINE = {
    "batch_size": kinds.count,
    "class_names": kinds.listed,
    "seed": kinds.count,
    "flip": kinds.flag,
    "augment": kinds.listed,
    "validation_share": kinds.number,
}


def record() -> SelectionRecord:
    return SelectionRecord(
        epoch=0,
        rho=0.9,
        selection=selector.select_tensors(worth(), table(), 0.9),
        importance=worth(),
        predicted_ratio=0.8,
        seconds_importance=1.0,
        seconds_solve=0.1,
    )


def labelled(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((count, 8, 8, 1), np.uint8), np.arange(count) % 3


def archive(folder: Path) -> Path:
    (x, y), (x_test, y_test) = labelled(6), labelled(3)
    np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return folder / "a.npz"


def run(folder: Path) -> runs.Run:
    return runs.create(folder / "run", {"seed": 1})


CALLS = (
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
        models.build,
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
        models.head_tensors,
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
        atomic.write_text,
        lambda d: {"path": d / "a", "text": "a"},
        {**PATHS, "text": kinds.text},
    ),
    Call(
        "files.write_json",
        write_json,
        lambda d: {"path": d / "a", "data": [1], "most": 2**20},
        {**PATHS, "data": kinds.listed, "most": kinds.count},
    ),
    Call(
        "files.append_line",
        atomic.append_line,
        lambda d: {"path": d / "a", "text": "a"},
        {**PATHS, "text": kinds.text},
    ),
    Call("files.directory", atomic.directory, lambda d: {"path": d / "a"}, PATHS),
    Call("files.as_utf8", atomic.as_utf8, lambda _: {"text": "a"}, {"text": kinds.text}),
)
