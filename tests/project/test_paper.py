"""The plan of the paper's runs, and its execution without training."""

from pathlib import Path

import paper
import paper_specs
import pytest
from launches import Launches
from paper_specs import FIGURES, TABLES, Training

from elastic_tf.app.commands import compare, settings
from elastic_tf.app.commands.commandline import parse, words_of
from elastic_tf.methods import baselines

SCALES = {"small": paper_specs.small(), "paper": paper_specs.paper(Path("vit.h5"))}
PICTURES = [*FIGURES.values(), *TABLES.values()]
TRAININGS = {t.name: t for one in PICTURES for t in one.trainings}


def made(settings, run):
    """A finished run."""
    run.finish({"accuracy": 0.5})


@pytest.mark.parametrize("scale", SCALES)
def test_every_training_is_one_that_train_takes(scale, monkeypatch):
    # weights and photographs that the user brings
    monkeypatch.setattr(settings, "file", lambda name, value, what: value)
    for training in TRAININGS.values():
        if training.model in SCALES[scale].models:
            words = words_of({**SCALES[scale].options(training), "out": "run"})
            assert baselines.get(parse(settings.Train, "", words).method).name == training.method


def test_paper_scale_is_the_setting_of_the_paper():
    options = SCALES["paper"].options(Training("resnet50", "cub", "elastictrainer", 0.5))
    expected = {"data": "tfds:caltech_birds2011", "epochs": 12, "batch_size": 4, "input_size": 224}
    expected |= {"optimizer": "sgdw", "learning_rate": 1e-4, "schedule": "cosine"}
    expected |= {"rho": 0.5, "interval": 3}
    assert {name: options[name] for name in expected} == expected
    vit = SCALES["paper"].options(Training("vit_b16", "cub", "full"))
    assert (vit["optimizer"], vit["schedule"], vit["learning_rate"]) == ("adam", "constant", 1e-4)


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["--figure", "99"], "2a, 2b, 15a.*Received: --figure 99"),
        (["--table", "3"], "tables are 2. Received: --table 3"),
        (["--figure", "19", "--scale", "paper"], "no --vit-weights"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, arguments, received):
    with pytest.raises(ValueError, match=received):
        paper.main([*arguments, "--out", str(tmp_path)], Launches(made))


def test_runs_of_a_figure_are_made_once_and_one_that_fails_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "profiled", lambda *_: tmp_path / "profile.json")
    monkeypatch.setattr(paper, "drawn", lambda path, *_: path)
    launches = Launches(made)

    def launch(arguments, log):
        if "elastic_weight" in arguments:
            raise compare.TrainingFailed("exit code 1")
        launches(arguments, log)

    with pytest.raises(compare.TrainingFailed, match="1 of 3: .*elastic_weight@0.5"):
        paper.main(["--figure", "20a", "--out", str(tmp_path)], launch)
    assert [one.method for one in launches.trained] == ["elastictrainer", "elastic_grad"]
    paper.main(["--figure", "20a", "--out", str(tmp_path)], launches)
    assert [one.method for one in launches.trained[2:]] == ["elastic_weight"]
    assert len(list(tmp_path.glob("small/here/trainings/cub/resnet50/*/result.json"))) == 3
    paper.main(["--figure", "21b", "--out", str(tmp_path)], launches)  # shows one of them
    assert len(launches.trained) == 3
