"""Run directories: what is written comes back, whatever happened in between."""

import dataclasses
import json
import resource
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.app import runs

CONFIG = {"method": "elastic", "rho": 0.5, "seed": 3, "shape": (4, 8), "out": Path("x")}


def test_create_writes_the_config_with_versions_seed_and_device(tmp_path):
    run = runs.create(tmp_path / "deep" / "run", CONFIG)
    written = json.loads((run.path / "config.json").read_text())
    assert written == run.config
    assert written["settings"] == {**CONFIG, "shape": [4, 8], "out": "x"}
    assert written["seed"] == 3
    assert written["versions"]["tensorflow"] == tf.__version__
    assert written["device"]["cores"] >= 1
    assert (run.history, run.result) == ([], None)


def test_epochs_and_result_come_back(tmp_path):
    run = runs.create(tmp_path, CONFIG)
    run.append_epoch({"loss": np.float32(0.5), "accuracy": tf.constant(0.25), "steps": np.int64(7)})
    run.append_epoch({"loss": float("nan"), "per_class": np.array([[1, 2]])})
    run.finish({"accuracy": np.float64(0.5), "path": tmp_path})
    again = runs.load(tmp_path)
    assert again.history == run.history
    assert again.history == [
        {"epoch": 1, "loss": 0.5, "accuracy": 0.25, "steps": 7},
        {"epoch": 2, "loss": None, "per_class": [[1, 2]]},
    ]
    assert again.result == {"accuracy": 0.5, "path": str(tmp_path)}


def test_weights_come_back_or_are_refused_and_the_old_ones_stay_where_the_disk_is_full(tmp_path):
    run, layers = runs.create(tmp_path, CONFIG), tf.keras.layers
    model = tf.keras.Sequential([layers.Input((5,)), layers.Dense(300)])
    run.save_weights(model)
    run.finish({})
    expected = model.get_weights()
    model.set_weights([0 * value for value in expected])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run.save_weights(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    runs.load(tmp_path).load_weights(model)
    np.testing.assert_array_equal(model.get_weights()[0], expected[0])
    assert sorted(one.name for one in tmp_path.glob("*.h5")) == ["model.weights.h5"]
    file = tmp_path / "model.weights.h5"
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    for changed in (data, data[:1000]):
        file.write_bytes(changed)
        with pytest.raises(ValueError, match="those that training wrote.*model.weights.h5"):
            runs.load(tmp_path).load_weights(model)


def test_equal_settings_continue_the_run(tmp_path):
    first = runs.create(tmp_path, CONFIG)
    first.append_epoch({"loss": 1.0})
    before = (tmp_path / "config.json").read_bytes()
    second = runs.create(tmp_path, CONFIG)
    assert second.history == [{"epoch": 1, "loss": 1.0}]
    second.append_epoch({"loss": 0.5})
    assert [epoch["epoch"] for epoch in runs.load(tmp_path).history] == [1, 2]
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 0.6}, "'rho': 0.5 in the directory, 0.6 now"),
        ({"shape": (4, 9)}, r"'shape': \[4, 8\] in the directory, \[4, 9\] now"),
        ({"extra": 1}, "'extra': 'nothing' in the directory, 1 now"),
    ],
)
def test_other_settings_are_refused_with_the_first_difference(tmp_path, change, message):
    runs.create(tmp_path, CONFIG).append_epoch({"loss": 1.0})
    with pytest.raises(ValueError, match=message):
        runs.create(tmp_path, {**CONFIG, **change})


def test_other_settings_start_anew_where_no_epoch_was_finished(tmp_path):
    runs.create(tmp_path, CONFIG)
    run = runs.create(tmp_path, {**CONFIG, "seed": 5})
    assert run.config["settings"]["seed"] == 5


def test_damaged_files_are_named(tmp_path):
    run = runs.create(tmp_path, CONFIG)
    (tmp_path / "history.jsonl").write_text('{"epoch": 0\n{"epoch": 1}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl' is damaged"):
        runs.load(tmp_path)
    (run.path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json' is damaged"):
        runs.create(tmp_path, CONFIG)
    with pytest.raises(FileNotFoundError, match="nothing"):
        runs.load(tmp_path / "nothing")


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds result\.json alone"):
        runs.create(tmp_path, CONFIG)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="File exists"):
        runs.create(tmp_path / "file", CONFIG)


def test_peak_memory_counts_what_was_allocated():
    before = runs.peak_memory_bytes()
    block = np.ones(50_000_000, np.uint8)
    assert runs.peak_memory_bytes() >= max(before, block.nbytes)
    assert before > 10_000_000  # bytes, not kilobytes
