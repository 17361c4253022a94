"""The comparison of methods on made-up trainings."""

import json
import shlex

import pytest
from launches import Launches

from elastic_tf.app.commands import compare

RATIO = {"full": 1.0, "traditional_tl": 0.4, "elastic": 0.5}
BEST_RATE = {"full": 1e-5, "traditional_tl": 1e-3, "elastic": 1e-4}


def made(settings, run, right=None):
    """What fits best is the best rate and many epochs."""
    ratio, rate = RATIO[settings.method], settings.learning_rate
    for epoch in range(settings.epochs):
        seconds = 3.0 * ratio + (0.0 if epoch else 0.9)
        run.append_epoch({"seconds": seconds, "val_loss": None if rate == 1e-5 else rate})
    accuracy = 0.5 if settings.method == "traditional_tl" else 0.8
    accuracy += 0.01 * settings.seed + 0.001 * settings.epochs
    if rate != BEST_RATE[settings.method]:
        accuracy -= 0.1
    run.finish(
        {
            "accuracy": accuracy,
            "validation_accuracy": accuracy - 0.05 if right is None else right,
            "training_seconds": settings.epochs * ratio * 3.0 + 0.9,
        }
    )


def compared(out, launch, more=""):
    words = "--data digits --model digits_resnet --weights none --epochs 4 --rates 1e-5,1e-4,1e-3"
    words += f" --methods full,traditional_tl,elastic@0.5 --profile {out}/profile.json --out {out}"
    return compare.compare(f"{words} {more}".split(), launch)


def by_method(result, table):
    return {row["method"]: row for row in result["tables"][table]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison at equal epochs and equal seconds: its folder, trainings and result."""
    out = tmp_path_factory.mktemp("compared")
    launch = Launches(made)
    return out, launch.trained, compared(out, launch)


def test_each_method_gets_its_best_rate_from_the_same_trials(whole):
    _, trained, result = whole
    rows = by_method(result, "equal_epochs")
    assert {name.partition("@")[0]: row["rate"] for name, row in rows.items()} == BEST_RATE
    assert [rows[name]["rate_at_edge"] for name in rows] == [True, True, False]
    tried = [(one.method, one.learning_rate) for one in trained[:27] if one.seed == 0]
    assert len(tried) == len(set(tried)) == 3 * 3


def test_equal_seconds_give_each_method_the_epochs_that_fit(whole):
    rows = by_method(whole[2], "equal_seconds")
    assert {name: row["epochs"] for name, row in rows.items()} == {
        "full": 2,
        "traditional_tl": 5,
        "elastic@0.5": 4,
    }
    assert rows["full"]["seconds"] == pytest.approx(2 * 3.0 + 0.9)
    assert rows["elastic@0.5"]["seconds"] == pytest.approx(4 * 1.5 + 0.9)


def test_verdicts_are_given_against_the_reference(whole):
    rows = by_method(whole[2], "equal_epochs")
    assert rows["elastic@0.5"]["verdict"] == "(reference)"
    assert rows["traditional_tl"]["verdict"] == "worse by 30.0 to 30.0 points"
    assert "no difference shown" in rows["full"]["verdict"]
    assert rows["full"]["accuracy"] == "81.4 ± 2.5"


def test_what_is_done_is_not_done_again(whole):
    out, _, result = whole
    again = Launches(made)
    later = compared(out, again)
    assert not again.trained
    assert {**later, "created": result["created"]} == result
    assert json.loads((out / "comparison.json").read_text()) == later
    assert shlex.split(result["command"])[:4] == ["python", "-m", "elastic_tf", "compare"]
    assert (out / "comparison.png").is_file()


def test_of_rates_with_the_same_accuracy_the_one_with_the_smaller_loss_is_taken(tmp_path):
    launch = Launches(lambda settings, run: made(settings, run, right=0.5))
    rows = by_method(compared(tmp_path, launch, "--seeds 1"), "equal_epochs")
    assert {row["rate"] for row in rows.values()} == {1e-4}  # 1e-5 has no loss, 1e-3 a larger one


def test_seconds_can_be_a_share_of_those_of_one_method(tmp_path):
    result = compared(tmp_path, Launches(made), "--budget full:0.5 --seeds 1")
    most = 0.5 * by_method(result, "equal_epochs")["full"]["seconds"]
    assert result["allowed_seconds"] == pytest.approx(most)
    rows = by_method(result, "equal_seconds")
    for name, each in (("full", 3.0), ("traditional_tl", 1.2), ("elastic@0.5", 1.5)):
        assert rows[name]["seconds"] <= most or rows[name]["epochs"] == 1
        assert rows[name]["seconds"] + each > most


def test_a_rate_that_does_not_train_is_left_out(tmp_path):
    launches = Launches(made)

    def launch(arguments, log):
        if "1e-05" in arguments and "full" in arguments:
            raise compare.TrainingFailed("the loss is not finite")
        launches(arguments, log)

    rows = by_method(compared(tmp_path, launch, "--seeds 1"), "equal_epochs")
    assert rows["full"]["rate"] != 1e-5


@pytest.mark.parametrize(
    ("more", "received"),
    [
        ("--methods full,magic", "traditional_tl.*'magic'"),
        ("--methods full@0.5", "'full' takes no rho. Received: 'full@0.5'"),
        ("--methods elastic", "takes a rho, as in elastic@0.5. Received: 'elastic'"),
        ("--reference magic", "full, traditional_tl, elastic@0.5. Received: 'magic'"),
        ("--budget magic:0.5", "`budget` must name .* Received: 'magic'"),
        ("--rates fast", "'fast'"),
        ("--validation 0", "`validation` must be in .0, 1.. Received: 0.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, more, received):
    with pytest.raises(ValueError, match=received):
        compared(tmp_path, Launches(made), more)


def test_a_failed_training_says_what_it_printed(tmp_path):
    with pytest.raises(compare.TrainingFailed, match="exit code 2(.|\n)*unrecognized.*--magic"):
        compare.launched(["--data", "x", "--out", "y", "--magic"], tmp_path / "run.log")


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ([0.02, 0.02, 0.02], "better by 2.0 to 2.0 points"),
        ([-0.10, -0.09, -0.11], "worse by 7.5 to 12.5 points"),  # 10 and 4.303 * 1 / sqrt(3)
        ([0.0, 0.02, -0.01], "no difference shown (-3.5 to +4.1 points)"),
        ([0.8], "one seed: nothing shown"),
    ],
)
def test_verdict_says_what_students_interval_of_the_paired_difference_shows(differences, words):
    assert compare.verdict(*compare.interval(differences)) == words
