"""The paper's figures drawn from made-up runs."""

from __future__ import annotations

import figures
import numpy as np
import paper
import paper_scales
import pytest
from paper_specs import FIGURES, TABLES

from elastic_tf.app.runs import run as runs
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import to_ranges

COUNT, EPOCHS = 12, 3
MEASURED = {
    "solver": {
        "rho": 0.5,
        "rows": [
            {
                "resolution": resolution,
                "subproblems": 10 * resolution,
                "all_subproblems": 50 * resolution,
                "milliseconds": 0.1 * resolution,
                "achieved": 0.5,
                "our_milliseconds": 10.0,
                "our_achieved": 0.499,
            }
            for resolution in (100, 1000)
        ],
        "training_seconds": 60.0,
    },
    "profiling": {"vgg16": {"overhead": 0.01, "seconds": 1.0, "epoch_seconds": 100.0}},
}


def made(path, training):
    """A finished run of a training."""
    run = runs.create(path, {"seed": 0})
    steady = 1.0 if training.rho is None else training.rho
    for epoch in range(EPOCHS):
        mask = np.arange(COUNT) >= COUNT * (1 - steady) - epoch
        run.append_epoch(
            {
                "loss": 2.0 - 0.5 * epoch,
                "val_accuracy": 0.5 + 0.1 * epoch,
                "seconds": 10.0 * steady,
                "evaluation_seconds": 1.0,
                "trained": to_ranges(mask),
                "tensors": COUNT,
            }
        )
        run.selections.append({"importance": np.arange(COUNT) + epoch, "seconds_importance": 0.5})
    run.finish(
        {
            "accuracy": 0.7,
            "seconds_with_evaluation": 33.0 * steady,
            "flops": 1e12 * steady,
            "flops_by_epoch": [2e9 * steady] * EPOCHS,
            "peak_memory_bytes": 5e8,
            "activation_bytes": 5e7,
            "energy_joules": 4000.0,
        }
    )
    return run


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws one name from made-up runs."""
    known = {}
    monkeypatch.setattr(figures.run, "load", lambda path: known[path])

    def draw(kind, name, picture):
        root = tmp_path / "small" / "here"
        for training in paper_scales.small().trainings(picture):
            path = paper.run_path(root, training)
            known.setdefault(path, None)
            if known[path] is None:
                known[path] = made(path, training)
        if picture.measure:
            write_json(paper.measure_path(root, picture.measure), MEASURED[picture.measure])
        return figures.main([f"--{kind}", name, "--out", str(tmp_path)])

    return draw


FORMS = {picture.form: name for name, picture in FIGURES.items()}


@pytest.mark.parametrize("name", FORMS.values())
def test_every_form_of_figure_is_drawn(name, drawn):
    (path,) = drawn("figure", name, FIGURES[name])
    assert path.name == f"figure_{name}.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_speedup_is_the_best_baselines_time_over_ours(drawn, capsys):
    drawn("table", "1", TABLES["1"])
    (path,) = drawn("table", "2", TABLES["2"])
    assert path.read_text().strip() in capsys.readouterr().out
    # all reach it after the same epochs; ours take half as long
    assert "2.00" in path.read_text()


def test_a_run_that_is_missing_is_named_with_the_way_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="not finished. Make it with python exp.*paper.py"):
        figures.main(["--figure", "20a", "--out", str(tmp_path)])
    with pytest.raises(FileNotFoundError, match="measurement .*solver.json.* not there"):
        figures.main(["--figure", "13a", "--out", str(tmp_path)])


def test_no_energy_is_drawn_without_a_sensor(drawn, monkeypatch, capsys):
    before = runs.Run.finish
    monkeypatch.setattr(
        runs.Run,
        "finish",
        lambda run, result: before(run, {**result, "energy_joules": "no sensor"}),
    )
    assert drawn("figure", "23a", FIGURES["23a"]) == []
    assert "figure 23a: nothing to draw, there was no energy sensor" in capsys.readouterr().out
