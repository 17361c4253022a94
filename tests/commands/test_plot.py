"""The command that draws."""

import json
from pathlib import Path

import numpy as np
import pytest

from elastic_tf import plots
from elastic_tf.app import runs
from elastic_tf.app.commands import plot
from elastic_tf.files import to_ranges
from elastic_tf.timing.profile import TimingProfile

COUNT = 4
BIRDS = Path(__file__).resolve().parents[2] / "experiments" / "results" / "birds.json"


def made(path, method="elastic", rho=0.5, validation=0.1):
    """A run directory."""
    run = runs.create(path, {"seed": 0, "method": method, "rho": rho, "validation": validation})
    for epoch in range(3):
        mask = np.arange(COUNT) >= (0 if rho is None else 1 + epoch % 2)
        run.append_epoch(
            {
                "val_accuracy": 0.5 + 0.1 * epoch,
                "seconds": 10.0,
                "trained": to_ranges(mask),
                "tensors": COUNT,
                **({} if epoch else {"head_seconds": 2.0, "head_accuracy": 0.4}),
            }
        )
    return path


@pytest.fixture
def figures(monkeypatch):
    """Every figure that was drawn, by the name of its file."""
    found = {}
    monkeypatch.setattr(plots, "save", lambda figure, path: found.__setitem__(path.name, figure))
    return found


def drawn(*words):
    return plot.main([str(word) for word in words])


def test_a_profile_is_drawn(tmp_path):
    profile = TimingProfile.from_chain(t_dw=[1e3, 2e3], t_dy=[0, 3e3], t_forward=4e3)
    profile.save(tmp_path / "profile.json")
    (path,) = drawn("--profile", tmp_path / "profile.json", "--out", tmp_path / "times.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_runs_are_drawn_over_seconds_with_a_map_of_those_that_leave_tensors_out(tmp_path, figures):
    full = made(tmp_path / "full", method="full", rho=None)
    elastic = made(tmp_path / "elastic")
    paths = drawn("--runs", full, elastic, "--out", tmp_path / "runs.png", "--title", "Here")
    assert [path.name for path in paths] == ["runs.png", "runs_elastic_rho_0.5.png"]
    (axes,) = figures["runs.png"].axes
    assert axes.get_title(loc="left") == "Here"
    assert axes.get_ylabel() == "validation accuracy (%)"
    told = [text.get_text() for text in figures["runs.png"].legends[0].get_texts()]
    assert told == ["full", "elastic, rho=0.5"]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[2, 40], [12, 50], [22, 60], [32, 70]])
    image = figures["runs_elastic_rho_0.5.png"].axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, [[0, 0, 0], [1, 0, 1], [1, 1, 1], [1, 1, 1]])


def test_a_finished_run_ends_at_what_it_kept(tmp_path, figures):
    path = made(tmp_path / "run")
    result = {"training_seconds": 30.0, "head_seconds": 5.0, "validation_accuracy": 0.75}
    runs.load(path).finish(result)
    drawn("--runs", path, "--out", tmp_path / "run.png")
    found = figures["run.png"].axes[0].lines[0].get_xydata()
    np.testing.assert_allclose(found, [[2, 40], [12, 50], [22, 60], [32, 70], [35, 75]])


def test_accuracy_on_the_test_images_is_called_so(tmp_path, figures):
    drawn("--runs", made(tmp_path / "a", validation=0.0), "--out", tmp_path / "runs.png")
    assert figures["runs.png"].axes[0].get_ylabel() == "test accuracy (%)"
    made(tmp_path / "b")
    with pytest.raises(ValueError, match="test images of '.*/a', validation images of '.*/b'"):
        drawn("--runs", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "runs.png")


def test_a_comparison_is_drawn_over_seconds(tmp_path, figures):
    drawn("--comparison", BIRDS, "--out", tmp_path / "birds.png", "--title", "Birds")
    (axes,) = figures["birds.png"].axes
    assert axes.get_title(loc="left") == "Birds"
    assert axes.get_xlabel() == "training time (s)"
    tables = json.loads(BIRDS.read_text())["tables"]
    assert len(axes.containers) == len(tables["equal_seconds"])


def test_what_cannot_be_drawn_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"tables": {"full": []}}')
    runs.create(tmp_path / "empty", {"seed": 0})
    foreign = runs.create(tmp_path / "foreign", {"seed": 0})
    foreign.append_epoch({"loss": 1.0, "seconds": 1.0})
    for words, received in (
        ([], "runs=.., comparison=None"),
        (["--profile", "a.json", "--comparison", "b.json"], "a.json.*b.json"),
        (["--comparison", tmp_path / "other.json"], "other.json', which holds no such"),
        (["--runs", tmp_path / "empty"], "empty', without accuracies"),
        (["--runs", tmp_path / "foreign"], "foreign', without accuracies"),
    ):
        with pytest.raises(ValueError, match=received):
            drawn(*words, "--out", tmp_path / "a.png")
