"""The command that draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from elastic_tf import plots
from elastic_tf.commands import drawing, plot
from elastic_tf.files.ranges import to_ranges
from elastic_tf.runs import run as runs
from elastic_tf.timing.profile import TensorSpec, TimingProfile

COUNT = 4
BIRDS = Path(__file__).resolve().parents[2] / "experiments" / "results" / "birds.json"


def made(path, method="elastic", rho=0.5, epochs=3, validation=0.1, **more):
    """A run directory."""
    settings = {"seed": 0, "method": method, "rho": rho, "validation": validation, **more}
    run = runs.create(path, settings)
    for epoch in range(epochs):
        mask = np.arange(COUNT) >= (0 if rho is None else 1 + epoch % 2)
        run.append_epoch(
            {
                "val_accuracy": 0.5 + 0.1 * epoch,
                "seconds": 10.0,
                "trained": to_ranges(mask),
                "tensors": COUNT,
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
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "full",
        "elastic, rho=0.5",
    ]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[10, 50], [20, 60], [30, 70]])
    image = figures["runs_elastic_rho_0.5.png"].axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, [[0, 0, 0], [1, 0, 1], [1, 1, 1], [1, 1, 1]])


def test_runs_of_one_method_are_told_apart_by_their_directories(tmp_path):
    found = [runs.load(made(tmp_path / name)) for name in ("a", "b")]
    assert drawing.labels(found) == [f"elastic, rho=0.5 ({tmp_path / name})" for name in ("a", "b")]


def test_tensors_have_the_names_of_the_runs_profile(tmp_path, figures):
    chain = TimingProfile.from_chain(t_dw=[1] * COUNT, t_dy=[1] * COUNT, t_forward=1)
    specs = tuple(TensorSpec(f"layer{k}/kernel", (2,), "float32") for k in range(COUNT))
    path = made(tmp_path / "elastic")
    TimingProfile(1, chain.items, COUNT, tensors=specs).save(path / "profile.json")
    drawn("--runs", path, "--out", tmp_path / "runs.png")
    (axes,) = figures["runs_elastic_rho_0.5.png"].axes
    assert [t.get_text() for t in axes.get_yticklabels()] == [spec.name for spec in specs]


def test_accuracy_on_the_test_images_is_called_so(tmp_path, figures):
    drawn("--runs", made(tmp_path / "run", validation=0.0), "--out", tmp_path / "runs.png")
    assert figures["runs.png"].axes[0].get_ylabel() == "test accuracy (%)"


def test_a_comparison_is_drawn_at_both_budgets(tmp_path, figures):
    drawn("--comparison", BIRDS, "--out", tmp_path / "birds.png", "--title", "Birds")
    left, right = figures["birds.png"].axes
    assert figures["birds.png"].get_suptitle() == "Birds"
    assert left.get_xlabel() == "training time (s)"
    rows = json.loads(BIRDS.read_text())["tables"]["equal_seconds"]
    assert [text.get_text() for text in right.get_xticklabels()] == [row["method"] for row in rows]


def test_a_comparison_at_equal_epochs_alone_is_drawn_over_seconds(tmp_path, figures):
    path = tmp_path / "comparison.json"
    rows = json.loads(BIRDS.read_text())["tables"]["equal_epochs"]
    path.write_text(json.dumps({"tables": {"equal_epochs": rows}}))
    drawn("--comparison", path, "--out", tmp_path / "a.png")
    (axes,) = figures["a.png"].axes
    assert axes.get_xlabel() == "training time (s)"
    assert len(axes.containers) == len(rows)


def test_a_comparison_without_equal_epochs_is_refused(tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text('{"tables": {"equal_seconds": []}}')
    with pytest.raises(ValueError, match="comparison.json', which holds tables of equal_seconds"):
        drawn("--comparison", path, "--out", tmp_path / "a.png")


@pytest.mark.parametrize(
    ("words", "received"),
    [
        (["--out", "a.png"], "Received: none"),
        (
            ["--out", "a.png", "--profile", "p.json", "--runs", "run"],
            "Received: --profile and --runs",
        ),
        (["--out", "a.txt", "--profile", "p.json"], "a picture, .png, .*Received: 'a.txt'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(words, received):
    with pytest.raises(ValueError, match=received):
        drawn(*words)


def test_a_run_without_an_epoch_is_refused(tmp_path):
    with pytest.raises(ValueError, match="an epoch. Received: '.*young'"):
        drawn("--runs", made(tmp_path / "young", epochs=0), "--out", tmp_path / "a.png")


def test_a_profile_that_a_run_names_elsewhere_is_not_read(tmp_path, figures):
    chain = TimingProfile.from_chain(t_dw=[1] * COUNT, t_dy=[1] * COUNT, t_forward=1)
    specs = tuple(TensorSpec(f"secret{k}", (2,), "float32") for k in range(COUNT))
    TimingProfile(1, chain.items, COUNT, tensors=specs).save(tmp_path / "secret.json")
    path = made(tmp_path / "elastic", profile=str(tmp_path / "secret.json"))
    drawn("--runs", path, "--out", tmp_path / "runs.png")
    (axes,) = figures["runs_elastic_rho_0.5.png"].axes
    assert not any("secret" in text.get_text() for text in axes.get_yticklabels())


def test_a_history_of_something_else_is_refused(tmp_path):
    path = made(tmp_path / "run")
    (path / "history.jsonl").write_text('{"epoch": 0, "seconds": "long"}\n')
    with pytest.raises(ValueError, match="whose epoch 1 has `seconds` 'long'"):
        drawn("--runs", path, "--out", tmp_path / "a.png")
