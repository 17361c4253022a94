"""The plan of the paper's runs, and its execution without training."""

from __future__ import annotations

from pathlib import Path

import figure_forms
import paper
import paper_measures
import paper_scales
import paper_specs
import pytest
from launches import Launches
from paper_specs import FIGURES, TABLES, Training

from elastic_tf import arguments, baselines
from elastic_tf.commands import contest, train
from elastic_tf.commands.commandline import parse, words_of

SCALES = {
    "digits": paper_scales.digits(),
    "small": paper_scales.small(),
    "paper": paper_scales.paper(Path("vit.h5")),
}
PICTURES = {**FIGURES, **{f"table {name}": one for name, one in TABLES.items()}}
TRAININGS = {t.name: t for one in PICTURES.values() for t in one.trainings}


def made(settings, run):
    """A finished run."""
    run.finish({"accuracy": 0.5})


def started(tmp_path, monkeypatch, *arguments):
    """paper.py at the smallest scale, without profiling; what was trained."""
    monkeypatch.setattr(paper_scales, "small", paper_scales.digits)
    monkeypatch.setattr(paper, "profiled", lambda *_: tmp_path / "profile.json")
    launch = Launches(made)
    paper.main([*arguments, "--out", str(tmp_path)], launch)
    return launch.trained


def test_every_figure_and_table_of_the_paper_is_there():
    numbers = {"2", "7", "13", "15", "16", "17", "18", "19", "20", "21", "22", "23"}
    assert {name.rstrip("abcdef") for name in FIGURES} == numbers
    assert set(TABLES) == {"1", "2"}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_can_be_drawn_from_something(name):
    one = PICTURES[name]
    assert one.form in figure_forms.FORMS
    assert bool(one.trainings) != bool(one.measure)
    assert one.measure is None or one.measure in paper_measures.MEASURES


@pytest.mark.parametrize("scale", SCALES)
def test_every_training_is_one_that_train_takes(scale, monkeypatch):
    # weights and photographs that the user brings
    monkeypatch.setattr(arguments, "file", lambda name, value, what: value)
    for training in TRAININGS.values():
        if training.model in SCALES[scale].models:
            words = words_of({**SCALES[scale].options(training), "out": "run"})
            assert baselines.get(parse(train.Settings, "", words).method).name == training.method


def test_paper_scale_is_the_setting_of_the_paper():
    options = SCALES["paper"].options(Training("resnet50", "cub", "elastictrainer", 0.5))
    expected = {
        "data": "tfds:caltech_birds2011",
        "epochs": 12,
        "batch_size": 4,
        "input_size": 224,
        "optimizer": "sgdw",
        "learning_rate": 1e-4,
        "schedule": "cosine",
        "rho": 0.5,
        "interval": 3,
    }
    assert {name: options[name] for name in expected} == expected
    vit = SCALES["paper"].options(Training("vit_b16", "cub", "full"))
    assert (vit["optimizer"], vit["schedule"], vit["learning_rate"]) == ("adam", "constant", 1e-4)


def test_trainings_of_one_name_are_equal_and_of_equal_options_have_one_name():
    named = [t for one in PICTURES.values() for t in one.trainings]
    assert all(TRAININGS[training.name] == training for training in named)


def test_a_scale_names_the_rho_that_it_trains_at():
    small = SCALES["small"].trainings(FIGURES["17a"])
    rhos = [training.rho for training in small if training.method == "elastictrainer"]
    assert rhos == [0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7]
    assert "rho=0.4" in small[4].label
    paper_rhos = [training.rho for training in SCALES["paper"].trainings(FIGURES["17a"])]
    assert paper_rhos[4] == 0.35


def test_pictures_say_what_stands_for_the_papers_models_and_data():
    assert SCALES["digits"].titled(FIGURES["20b"]).title == (
        "Metrics of importance on Pet\na small ResNet for resnet50, turned digits for pet"
    )
    assert SCALES["paper"].titled(FIGURES["20b"]) == FIGURES["20b"]


def test_one_training_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_scales, "small", paper_scales.digits)
    monkeypatch.setattr(paper, "profiled", lambda *_: tmp_path / "profile.json")
    launches = Launches(made)

    def launch(arguments, log):
        if "elastic_weight" in arguments:
            raise contest.TrainingFailed("exit code 1")
        launches(arguments, log)

    with pytest.raises(contest.TrainingFailed, match="1 of 3: .*elastic_weight@0.5"):
        paper.main(["--figure", "20a", "--out", str(tmp_path)], launch)
    assert [one.method for one in launches.trained] == ["elastictrainer", "elastic_grad"]


def test_a_second_device_has_the_runs_of_the_first():
    for first, second in (("15a", "16a"), ("15e", "16d"), ("17a", "17c"), ("22a", "22b")):
        assert FIGURES[first].trainings == FIGURES[second].trainings


def test_runs_of_a_figure_are_made_once(tmp_path, monkeypatch):
    trained = started(tmp_path, monkeypatch, "--figure", "20a")
    assert [one.method for one in trained] == ["elastictrainer", "elastic_weight", "elastic_grad"]
    assert len(list(tmp_path.glob("small/here/trainings/cub/resnet50/*/result.json"))) == 3
    assert started(tmp_path, monkeypatch, "--figure", "20a") == []
    # 21b shows one of them
    assert started(tmp_path, monkeypatch, "--figure", "21b") == []


def test_list_names_what_there_is(capsys):
    assert paper.main(["--list"]) == {}
    printed = capsys.readouterr().out
    assert "--figure 15a" in printed and "--table 2" in printed


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["--figure", "99"], "2a, 2b, 7a.*Received: --figure 99"),
        (["--table", "3"], "tables are 1, 2. Received: --table 3"),
        (["--figure", "19", "--scale", "paper"], "no --vit-weights"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, arguments, received):
    with pytest.raises(ValueError, match=received):
        paper.main([*arguments, "--out", str(tmp_path)], Launches(made))


def test_pictures_of_a_number_are_all_its_panels():
    names = list(paper_specs.pictures(figure="13"))
    assert names == ["figure 13a", "figure 13b"]


@pytest.mark.hours
@pytest.mark.parametrize("name", paper_measures.MEASURES)
def test_measures_give_positive_numbers(name, monkeypatch):
    timed = {"resnet50": {"name": "digits_resnet", "input_size": 16}}
    scale = paper_scales.dataclasses.replace(SCALES["digits"], timed=timed)
    monkeypatch.setattr(paper_measures, "_REPEATS", 1)
    monkeypatch.setattr(paper_measures, "_RESOLUTIONS", (50,))
    found = paper_measures.MEASURES[name](scale)
    if name == "profiling":
        assert found["resnet50"]["overhead"] > 0
    else:
        assert found["rows"][0]["subproblems"] < found["rows"][0]["all_subproblems"]
