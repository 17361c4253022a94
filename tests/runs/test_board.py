"""What TensorBoard is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from clocks import table

from elastic_tf import plots
from elastic_tf.plots.board import Board
from elastic_tf.choose.selection.records import SelectionRecord, line
from elastic_tf.choose.selection.records import table as text_table
from elastic_tf.choose.selection.selector import select_tensors


def record(**fields) -> SelectionRecord:
    importance = np.arange(10.0)
    made = SelectionRecord(
        epoch=3,
        rho=0.7,
        selection=select_tensors(importance, table(), 0.65),
        importance=importance,
        predicted_ratio=0.6,
        seconds_importance=1.5,
        seconds_solve=0.25,
    )
    return dataclasses.replace(made, **fields)


def events(directory: Path) -> dict[str, tf.Tensor]:
    """Tag -> value of all events."""
    found = {}
    for path in directory.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag] = tf.make_ndarray(value.tensor)
    return found


def test_selection_and_epoch_are_scalars(tmp_path):
    board = Board(tmp_path, [])
    board.selection(record())
    board.epoch(3, record(seconds_retrace=1.0), {"rho": 0.7, "achieved_ratio": float("nan")})
    board.close()
    found = {tag: float(value) for tag, value in events(tmp_path).items()}
    assert found == {
        "elastic/seconds_importance": 1.5,
        "elastic/seconds_solve": 0.25,
        "elastic/rho_asked_of_selector": np.float32(0.65),
        "elastic/tensors_trained": float(record().mask.sum()),
        "elastic/rho": np.float32(0.7),
        "elastic/seconds_selection": 2.75,
    }


def test_a_file_where_the_log_directory_must_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Received: '.*/file/log'"):
        Board(tmp_path / "file" / "log", [])


def test_pictures_are_images_and_few_however_often_it_selects(tmp_path, monkeypatch):
    drawn, png = [], plots.png(plots.selection_map([record().mask] * 4, names=["a"] * 10))
    monkeypatch.setattr(plots, "selection_map", lambda masks, **_: drawn.append(len(masks)))
    monkeypatch.setattr(plots, "png", lambda figure: png)
    board = Board(tmp_path, [])
    for epoch in range(100):
        board.picture([record().mask] * (epoch + 1), epoch)
    board.picture([record().mask] * 100, 99, is_last=True)
    board.close()
    assert drawn == [1, 2, 4, 8, 16, 32, 64, 100]
    width, height, image = events(tmp_path)["elastic/selection"]
    assert int(width) > 100 and int(height) > 100
    assert image.startswith(b"\x89PNG")


def test_table_has_a_line_for_each_selection():
    lines = text_table([record(), record(epoch=6, achieved_ratio=0.61, reason="ratio")]).split("\n")
    assert (
        lines[0].split()
        == (
            "epoch step reason tensors rho asked predicted achieved worth s solve s trace s"
        ).split()
    )
    trained = record().mask.sum()
    assert lines[2].split()[:8] == f"4 0 interval {trained} of 10 0.700 0.650".split()
    assert lines[3].split()[2] == "ratio"
    assert max(map(len, lines)) <= 115
    assert "0.610" in lines[3]


def test_line_names_epoch_count_and_ratios():
    said = line(record())
    assert said.startswith(f"Epoch 4: trains {record().mask.sum()} of 10 tensors, rho 0.700")
    assert "selected in 1.75 s because of the interval" in said
