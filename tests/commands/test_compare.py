"""The comparison of methods on made-up trainings, and once on real ones."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shlex
import time
from pathlib import Path

import pytest
from launches import Launches

from elastic_tf.commands import compare, profile
from elastic_tf.commands.comparing import trials, verdicts
from elastic_tf.commands.training import run_settings

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"
METHODS = "full,traditional_tl,elastic@0.5"
RATIO = {"full": 1.0, "traditional_tl": 0.4, "elastic": 0.5}
BEST_RATE = {"full": 1e-5, "traditional_tl": 1e-3, "elastic": 1e-4}


def made(settings, run):
    """What fits best is the best rate and many epochs."""
    ratio = RATIO[settings.method]
    for epoch in range(settings.epochs):
        tracing = 0.9 if epoch == 0 else 0.0
        run.append_epoch(
            {
                "steps": 100,
                "seconds": 3.0 * ratio + tracing,
                "overhead_seconds": tracing,
                "val_loss": None if settings.learning_rate == 1e-5 else settings.learning_rate,
            }
        )
    accuracy = 0.5 if settings.method == "traditional_tl" else 0.8
    accuracy += 0.01 * settings.seed + 0.001 * settings.epochs
    if settings.learning_rate != BEST_RATE[settings.method]:
        accuracy -= 0.1
    run.finish(
        {
            "accuracy": accuracy,
            "validation_accuracy": accuracy - 0.05,
            "achieved_ratio": ratio,
            "full_step_seconds": 0.02,
            "training_seconds": settings.epochs * ratio * 3.0 + 0.9,
            "flops_ratio": ratio,
            "peak_memory_bytes": 1000,
            "activation_bytes": 500,
            "class_names": ["a", "b"],
        }
    )


def compared(out, launch, *more):
    (out / "profile").mkdir(parents=True, exist_ok=True)
    options = ["--data", "digits", "--model", "digits_resnet", "--weights", "none"]
    options += ["--methods", METHODS, "--rates", "1e-5,1e-4,1e-3", "--epochs", "4"]
    options += ["--profile", str(out / "profile.json"), "--out", str(out), *more]
    return compare.main(options, launch)


def by_method(result, table):
    return {row["method"]: row for row in result["tables"][table]}


def test_the_share_beside_the_steps_is_of_the_seconds_and_from_the_epochs(tmp_path):
    # the results hold none: neither do those of older runs, which a comparison takes as they are
    rows = by_method(compared(tmp_path, Launches(made), "--equal", "epochs"), "equal_epochs")
    for name, row in rows.items():
        ratio = RATIO[name.partition("@")[0]]
        assert row["share_beside_steps"] == pytest.approx(0.9 / (4 * 3.0 * ratio + 0.9))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_comparisons_call_no_ratio_a_share(path):
    tables = json.loads(path.read_text(encoding="utf-8")).get("tables", {})
    for row in (row for rows in tables.values() for row in rows):
        assert "overhead_share" not in row
        assert "overhead_to_steps" in row or 0 <= row["share_beside_steps"] < 1


def test_each_method_gets_its_best_rate_from_the_same_trials(tmp_path):
    launch = Launches(made)
    rows = by_method(compared(tmp_path, launch, "--equal", "epochs"), "equal_epochs")
    assert {name: row["rate"] for name, row in rows.items()} == {
        "full": 1e-5,
        "traditional_tl": 1e-3,
        "elastic@0.5": 1e-4,
    }
    assert [rows[name]["rate_at_edge"] for name in rows] == [True, True, False]
    tried = [(one.method, one.learning_rate) for one in launch.trained[3:] if one.seed == 0]
    assert len(tried) == len(set(tried)) == 3 * 3


def test_each_training_is_announced_with_its_place(tmp_path, capsys):
    launch = Launches(made)
    compared(tmp_path, launch, "--budget", "full:0.01")
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Training ")]
    assert len(said) == len(launch.trained)
    wanted = {"heads": 3, "equal epochs": 27, "equal seconds": 9}
    places = [(what, k, count) for what, count in wanted.items() for k in range(1, count + 1)]
    for line, (what, number, count) in zip(said, places):
        to_go = ", about 0 min to go" if number > 1 else ""
        assert line.startswith(f"Training {number} of {count} ({what}{to_go}): ")
    assert len(said) == len(places)


def test_minutes_to_go_are_those_of_trainings_that_were_not_there(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    launches = Launches(made)

    def launch(arguments, log):
        launches(arguments, log)
        now[0] += 120.0

    trainings = [
        trials.Trial(tmp_path / f"{k}", {"data": "digits", "method": "full"}) for k in range(4)
    ]
    trials.run(trainings[0], launch)
    part = trials.Part("heads", 4)
    for trial in trainings:
        part.run(trial, launch)
    said = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert said[1:] == [
        "Training 2 of 4 (heads)",
        "Training 3 of 4 (heads, about 4 min to go)",
        "Training 4 of 4 (heads, about 2 min to go)",
    ]


def test_the_comparison_tells_its_command_and_its_day(tmp_path):
    result = compared(tmp_path, Launches(made), "--equal", "epochs")
    assert shlex.split(result["command"])[:4] == ["python", "-m", "elastic_tf", "compare"]
    assert result["command"].endswith("--equal epochs")
    assert datetime.datetime.fromisoformat(result["created"]).tzinfo is not None


@pytest.mark.parametrize("seeds", [2, 3])
def test_two_seeds_are_called_few(tmp_path, capsys, seeds):
    compared(tmp_path, Launches(made), "--equal", "epochs", "--seeds", str(seeds))
    assert ("Two seeds say little" in capsys.readouterr().out) == (seeds == 2)


def test_an_epoch_that_is_longer_than_the_equal_seconds_is_named(tmp_path, capsys):
    result = compared(tmp_path, Launches(made), "--budget", "full:0.2")
    rows = by_method(result, "equal_seconds")
    allowed = result["allowed_seconds"]
    assert allowed == pytest.approx(0.2 * by_method(result, "equal_epochs")["full"]["seconds"])
    longer = [name for name, row in rows.items() if row["seconds"] > allowed]
    assert "full" in longer and "traditional_tl" not in longer
    said = capsys.readouterr().out
    assert f"Equal are {allowed:.0f} s, as many epochs as fit into them." in said
    assert f"A single epoch takes longer: {', '.join(longer)}." in said


def test_tables_of_a_busy_machine_say_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    compared(tmp_path, Launches(made), "--equal", "epochs")
    assert "Note: 99.00 processes in the last minute before the start" in capsys.readouterr().out
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    compared(tmp_path, Launches(made), "--equal", "epochs")
    assert "Note:" not in capsys.readouterr().out


def test_all_commands_train_with_the_same_optimizer_unless_told_otherwise():
    kinds = (compare.Settings, run_settings.Settings, profile.Settings)
    defaults = [{f.name: f.default for f in dataclasses.fields(kind)} for kind in kinds]
    assert {default["optimizer"] for default in defaults} == {"adam"}


def test_of_rates_with_the_same_accuracy_the_one_with_the_smaller_loss_is_taken(tmp_path):
    def alike(settings, run):
        made(settings, run)
        path = run.path / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "validation_accuracy": 0.5}))

    rows = by_method(compared(tmp_path, Launches(alike), "--equal", "epochs"), "equal_epochs")
    assert {row["rate"] for row in rows.values()} == {1e-4}  # 1e-5 has no loss, 1e-3 a larger one


def test_all_start_from_the_same_head_of_their_seed(tmp_path):
    launch = Launches(made)
    compared(tmp_path, launch)
    heads = [one for one in launch.trained if "heads" in str(one.out)]
    assert [one.seed for one in heads] == [0, 1, 2]
    for one in launch.trained[3:]:
        assert one.weights == str(tmp_path / "heads" / f"seed_{one.seed}" / "weights.h5")
        assert one.warm_head == 0


def test_equal_seconds_give_each_method_the_epochs_that_fit(tmp_path):
    result = compared(tmp_path, Launches(made))
    rows = by_method(result, "equal_seconds")
    assert {name: row["epochs"] for name, row in rows.items()} == {
        "full": 2,
        "traditional_tl": 5,
        "elastic@0.5": 4,
    }
    # Steps, times the ratio, times the full step of all; tracing took 0.9 s where 100 full steps
    # took 3 instead of 2.
    assert rows["full"]["seconds"] == pytest.approx(200 * 0.02 + 0.6)
    assert rows["elastic@0.5"]["seconds"] == pytest.approx(400 * 0.5 * 0.02 + 0.6)
    assert rows["elastic@0.5"]["raw_seconds"] == pytest.approx(4 * 1.5 + 0.9)


def test_seconds_can_be_a_share_of_those_of_one_method(tmp_path):
    result = compared(tmp_path, Launches(made), "--budget", "full:0.5")
    equal = by_method(result, "equal_epochs")
    rows = by_method(result, "equal_seconds")
    most = 0.5 * equal["full"]["seconds"]
    for name, each in (("full", 2.0), ("traditional_tl", 0.8), ("elastic@0.5", 1.0)):
        assert rows[name]["seconds"] <= most or rows[name]["epochs"] == 1
        assert rows[name]["seconds"] + each > most


def test_verdicts_are_given_against_the_reference(tmp_path, capsys):
    rows = by_method(compared(tmp_path, Launches(made)), "equal_epochs")
    assert rows["elastic@0.5"]["verdict"] == "(reference)"
    assert rows["traditional_tl"]["verdict"] == "worse by 30.0 to 30.0 points"
    assert "no difference shown" in rows["full"]["verdict"]
    assert "81.4 ± 2.5" in capsys.readouterr().out


def test_what_is_done_is_not_done_again(tmp_path):
    first = Launches(made)
    result = compared(tmp_path, first)
    again = Launches(made)
    later = compared(tmp_path, again)
    assert {**later, "created": result["created"]} == result
    assert first.trained and not again.trained
    assert json.loads((tmp_path / "comparison.json").read_text()) == later
    assert {path.stem for path in tmp_path.glob("*.png")} == {"equal_epochs", "equal_seconds"}


def test_a_rate_that_does_not_train_is_left_out(tmp_path):
    launches = Launches(made)

    def launch(arguments, log):
        if "1e-05" in arguments and "full" in arguments:
            raise trials.TrainingFailed("the loss is not finite")
        launches(arguments, log)

    rows = by_method(compared(tmp_path, launch, "--equal", "epochs"), "equal_epochs")
    assert rows["full"]["rate"] != 1e-5


@pytest.mark.parametrize(
    ("options", "received"),
    [
        (["--methods", "full,magic"], "traditional_tl.*Received: methods='magic'"),
        (["--methods", "full@0.5"], "'full' takes no rho. Received: 'full@0.5'"),
        (["--methods", "elastic"], "takes a rho, as in elastic@0.5. Received: 'elastic'"),
        (["--methods", "elastic@2"], "Received: rho=2"),
        (["--methods", "full,full"], "different methods. Received: 'full,full'"),
        (["--reference", "magic"], "full, traditional_tl, elastic@0.5. Received: 'magic'"),
        (["--budget", "magic:0.5"], "share of its seconds, as in full:0.5. Received: 'magic:0.5'"),
        (["--budget", "full:-1"], "Received: 'full:-1'"),
        (["--rates", "fast"], "Received: 'fast'"),
        (["--validation", "0"], "`validation` must be in .0, 1.. Received: 0.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, options, received):
    with pytest.raises(ValueError, match=received):
        compared(tmp_path, Launches(made), *options)


def test_a_failed_training_says_what_it_printed(tmp_path):
    trial = trials.Trial(tmp_path / "run", {"data": str(tmp_path / "nowhere"), "method": "full"})
    with pytest.raises(trials.TrainingFailed, match="exit code 2(.|\n)*nowhere"):
        trials.run(trial)


@pytest.mark.parametrize(
    ("values", "reference", "words"),
    [
        ([0.82, 0.83, 0.84], [0.80, 0.81, 0.82], "better by 2.0 to 2.0 points"),
        ([0.70, 0.72, 0.71], [0.80, 0.81, 0.82], "worse by 7.5 to 12.5 points"),
        ([0.80, 0.83, 0.81], [0.80, 0.81, 0.82], r"no difference shown (-3.5 to +4.1 points)"),
        ([0.9], [0.1], "one seed: nothing shown"),
    ],
)
def test_verdict_says_what_the_interval_of_the_paired_difference_shows(values, reference, words):
    assert verdicts.verdict(verdicts.difference(values, reference)) == words


def test_interval_is_students():
    found = verdicts.interval([0.7, 0.8, 0.9])
    assert found.mean == pytest.approx(0.8)
    assert found.half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert str(found) == "80.0 ± 24.8"
    with pytest.raises(ValueError, match="3 and 2 values"):
        verdicts.difference([1, 2, 3], [1, 2])
