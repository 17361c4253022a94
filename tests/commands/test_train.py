"""The command that trains, on tiny settings."""

import os
import shlex
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tiny_runs import TRAINING

import elastic_tf as et
from elastic_tf.app import runs
from elastic_tf.app.commands import recording, report, train, trained
from elastic_tf.train import recovery, saved


def words(arrays, out, more=""):
    return [*TRAINING.split(), "--data", str(arrays), "--out", str(out), *shlex.split(more)]


def test_train_writes_a_whole_run_directory_within_the_budget(elastic):
    run, _, _ = elastic
    names = "config.json profile.json history.jsonl result.json model.weights.h5"
    assert {path.name for path in run.path.iterdir()} == {*names.split(), "run.lock"}
    loaded = runs.load(run.path)
    assert [epoch["epoch"] for epoch in loaded.history] == [1, 2]
    assert loaded.config["settings"]["rho"] == 0.7
    profile = et.TimingProfile.load(run.path / "profile.json")
    for plan in runs.trained_plans(loaded.history):
        assert plan.mask[-2:].all()  # the head stays trained
        assert profile.step_time(plan.mask) <= 0.7 * profile.t_full


def test_train_says_what_came_out(elastic):
    result = elastic[0].result
    assert result["method"] == "elastic_loss" and result["class_names"] == ["0", "1"]
    assert 0 <= result["accuracy"] <= 1 and 0 <= result["validation_accuracy"] <= 1
    assert result["seconds_with_evaluation"] > result["training_seconds"] > 0
    assert result["head_seconds"] > elastic[0].history[0]["head_seconds"] > 0  # before and after
    assert 0 <= elastic[0].history[0]["head_accuracy"] <= 1


def test_train_ends_with_the_command_that_writes_a_page(elastic):
    run, _, said = elastic
    _, module, package, name, *given = shlex.split(said.splitlines()[-1].partition(": ")[2])
    assert (module, package, name) == ("-m", "elastic_tf", "report")
    path = report.report(given)
    assert path == run.path / "report.html"
    path.unlink()


def stored(path):
    return et.zoo.build("digits_resnet", classes=2, input_size=16, weights=path).get_weights()


def test_train_prints_a_finished_run_again_and_refuses_the_directory_of_another(elastic, capsys):
    run, given, _ = elastic
    assert train.train(given).result == run.result
    assert "Finished before" in capsys.readouterr().out
    with pytest.raises(ValueError, match="'learning_rate'.*0.001.*0.5"):
        train.train([*given, "--learning-rate", "0.5"])


def test_a_training_that_harms_ends_with_its_solved_head(arrays, tmp_path, capsys):
    words = [*TRAINING.split(), "--data", str(arrays), "--out", str(tmp_path / "run")]
    words += "--method full --learning-rate 5 --optimizer sgd --epochs 1".split()
    words.remove("--quiet")
    run = train.train(words)
    first, found = run.history[0]["head_accuracy"], run.result
    assert found["validation_accuracy"] >= max(first, *(e["val_accuracy"] for e in run.history))
    assert f"Validation: head {first:.1%}, now" in capsys.readouterr().out
    assert not (tmp_path / "run" / "best.weights.h5").exists()


class Kill(BaseException):
    """Stands for a power cut."""


def test_train_goes_on_where_it_was_interrupted_and_from_another_place(
    elastic, arrays, tmp_path, monkeypatch
):
    profile = shlex.quote(str(elastic[0].path / "profile.json"))
    more, begin = f"--rho 0.7 --interval 1 --profile {profile}", recording.Recorder.on_epoch_begin

    def broken(*given):
        if given[1:2] != (0,):  # but for the beginning of the first epoch
            raise Kill
        begin(*given)

    for place, name in ((recording.Recorder, "on_epoch_begin"), (recording, "summary")):
        with monkeypatch.context() as patch, pytest.raises(Kill):
            patch.setattr(place, name, broken)
            train.train(words(arrays, tmp_path / "run", more))
    before = stored(tmp_path / "run" / "model.weights.h5")
    shutil.copytree(tmp_path / "run", tmp_path / "moved")  # this process holds the lock of `run`
    (tmp_path / "moved" / "run.lock").unlink()
    given = words(arrays, f"{tmp_path}/./moved", more)
    given.remove("--quiet")
    run = train.train(given)
    np.testing.assert_equal(stored(run.path / "model.weights.h5"), before)
    assert [epoch["epoch"] for epoch in run.history] == [1, 2]
    assert run.result["epochs"] == 2
    assert not (run.path / "backup").exists()


@pytest.mark.parametrize("method", ["full", "random_neurons"])
def test_train_goes_on_after_a_kill_at_any_moment(
    method, arrays, tmp_path, monkeypatch, deterministic
):
    def given(out):
        return words(arrays, tmp_path / out, f"--method {method}")

    def killed(place, name, count):
        original, calls = getattr(place, name), []

        def counted(*args, **kwargs):
            calls.append(1)
            if len(calls) == count:
                raise Kill
            return original(*args, **kwargs)

        with monkeypatch.context() as patch, pytest.raises(Kill):
            patch.setattr(place, name, counted)
            train.train(given("cut"))

    expected = train.train(given("whole"))
    moments = [(saved, "_add", 4), (recovery.Recovery, "epoch_begins", 2), (saved, "_add", 60)]
    for moment in [*moments, (os, "replace", 2), (runs.Run, "save_weights", 1)]:
        killed(*moment)
    found = train.train(given("cut"))
    for key in ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "trained"):
        assert [e[key] for e in found.history] == [e[key] for e in expected.history], key
    for key in ("accuracy", "validation_accuracy", "kept_epoch", "epochs"):
        assert found.result[key] == expected.result[key], key
    weights = (stored(run.path / "model.weights.h5") for run in (found, expected))
    for one, other in zip(*weights):
        np.testing.assert_array_equal(one, other)
    assert sorted(one.name for one in found.path.iterdir()) == sorted(
        one.name for one in expected.path.iterdir()
    )


def test_a_training_that_gets_no_better_ends_early(arrays, tmp_path):
    more = "--method full --patience 2 --schedule constant --learning-rate 1e-12 --validation 0.3"
    given = words(arrays, tmp_path / "run", f"{more} --epochs 9")
    run = train.train(given)
    assert len(run.history) == run.result["epochs"] == 3 and run.config["settings"]["epochs"] == 9
    assert train.train(given).result == run.result


def test_seconds_take_the_place_of_rho_and_nothing_is_measured_before(arrays, tmp_path, capsys):
    given = words(arrays, tmp_path / "run", "--method elastic --seconds 600 --epochs 2")
    run = train.train(given)
    found = run.result
    assert found["epochs"] == len(run.history) == 2 and found["steps"] == 6
    assert found["predicted_ratio"] == pytest.approx(1.0)  # there is time for everything
    assert found["validation_accuracy"] >= found["head_accuracy"]
    assert sum(found["seconds"].values()) == pytest.approx(found["training_seconds"])
    points = report.course(run)
    assert points[0][1] == found["head_accuracy"] and len(points) == 4
    assert points[-1] == (found["training_seconds"], found["validation_accuracy"])
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert f"On the test images: {found['accuracy']:.1%}" in capsys.readouterr().out
    assert stored(tmp_path / "run" / "model.weights.h5")
    assert train.train(given).result == found


def test_a_network_of_ones_own_is_trained_from_a_folder_of_classes(tmp_path, capsys):
    L = tf.keras.layers
    layers = [L.Input((16, 16, 3)), L.Rescaling(1 / 255), L.Conv2D(4, 3)]
    layers += [L.GlobalAveragePooling2D(), L.Dense(7)]  # not compiled: who knows what it tells
    file, images = tmp_path / "mine.keras", tmp_path / "images"
    tf.keras.Sequential(layers).save(file)
    for name, colour in (("dark", 20), ("light", 220)):
        (images / name).mkdir(parents=True)
        for k in range(10):
            picture = np.full((9, 9, 3), colour + k, np.uint8)
            tf.keras.utils.save_img(images / name / f"{k}.png", picture, scale=False)
    given = f"--model {file} --data {images} --out {tmp_path / 'run'} --batch-size 4 --quiet"
    run = train.train([*given.split(), "--seconds", "600", "--epochs", "1"])
    assert f"Images become 16 x 16 pixels, as '{file}' takes them" in capsys.readouterr().out
    head = trained.load(run.path).network().layers[-1]
    assert [one.shape for one in head.get_weights()] == [(4, 2), (2,)]  # in the place of its own
    assert run.config["settings"]["input_size"] == 16 and run.result["accuracy"] == 1.0
    file.unlink()  # the run holds it
    found = trained.evaluate(["--run", str(run.path)])
    assert found["accuracy"] == 1.0 and "of 4 test images" in capsys.readouterr().out
    trained.predict(["--run", str(run.path), str(images / "light" / "3.png")])
    assert "3.png: light " in capsys.readouterr().out


def test_seconds_that_are_interrupted_leave_the_best_weights(arrays, tmp_path, monkeypatch):
    given = words(arrays, tmp_path / "run", "--method elastic --seconds 600 --epochs 3")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recording.Recorder, "on_train_batch_end", interrupted)
        first = train.train(given)
    assert (first.result["epochs"], first.result["steps"]) == (0, 0)
    assert first.result["validation_accuracy"] == first.result["head_accuracy"]
    assert stored(tmp_path / "run" / "model.weights.h5")
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed
    (tmp_path / "run" / "history.jsonl").write_text('{"epoch": 1, "seconds": 1.0}\n')
    run = train.train(given)  # begins anew
    assert run.result["epochs"] == 3 and [epoch["epoch"] for epoch in run.history] == [1, 2, 3]


def test_too_few_seconds_leave_the_solved_head(arrays, tmp_path):
    given = words(arrays, tmp_path / "run", "--method elastic --seconds 1e-3")
    with pytest.warns(UserWarning, match="must suffice to train.*Received: 0.001"):
        found = train.train(given).result
    assert found["epochs"] == 0 and found["seconds"]["head"] > 0 and 0 <= found["accuracy"] <= 1
    assert stored(tmp_path / "run" / "model.weights.h5")


def test_train_keeps_to_memory(arrays, tmp_path):
    more = "--method elastic --rho 1 --memory"
    with pytest.raises(ValueError, match="smallest feasible limit is"):
        train.train(words(arrays, tmp_path / "refused", f"{more} 1000"))
    given = f"{more} '20 KiB' --epochs 1"  # of 23 that the whole step takes
    run = train.train(words(arrays, tmp_path / "run", given))
    assert not runs.trained_plans(run.history)[0].mask.all()


@pytest.mark.parametrize(
    ("more", "received"),
    [
        ("--input-size 8", "at least 16. Received: 8"),
        ("--batch-size 3 --profile PROFILE", "batch size 4, data of batch size 3"),
        ("--memory 1MiB", "`memory` without `profile`.*'1MiB' for elastic_loss"),
        ("--rho 0.5 --seconds 9", "beside `seconds`.*Received: rho=0.5 and seconds=9"),
        ("--seconds 9", "for the method elastic. Received: seconds=9 for elastic_loss"),
        ("--seconds 9 --patience 2", "beside `seconds`.*Received: patience=2 and seconds=9"),
        ("--patience 2 --validation 0", "patience=2 and validation=0"),
    ],
)
def test_train_refuses_options_that_do_not_fit(more, received, arrays, elastic, tmp_path):
    more = more.replace("PROFILE", shlex.quote(str(elastic[0].path / "profile.json")))
    with pytest.raises(ValueError, match=received):
        train.train([*words(arrays, tmp_path / "run"), *shlex.split(more)])


@pytest.mark.parametrize("more", ["--method full", "--method elastic --seconds 600"])
def test_balanced_classes_weigh_alike(more, tmp_path, monkeypatch):
    y = np.arange(24) % 6 // 5  # 20 of one class, 4 of the other
    x = np.full((24, 16, 16, 1), 90, np.uint8) + 60 * y[:, None, None, None].astype(np.uint8)
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x[:12], y_test=y[:12])
    found = []
    of_class = et.Samples.weighted
    monkeypatch.setattr(
        et.Samples, "weighted", lambda self, given: found.append(given) or of_class(self, given)
    )
    run = train.train(
        words(tmp_path / "few.npz", tmp_path / "run", f"{more} --balanced --epochs 1")
    )
    (weights,) = found
    assert weights == pytest.approx({0: 0.6, 1: 3.0}) and run.result["accuracy"] == 1.0


def test_a_network_is_trained_further_from_the_weights_of_a_run(elastic, arrays, tmp_path):
    run, given, _ = elastic
    with pytest.raises(ValueError, match=r"'epochs': 2 in.*further with --weights '.*weights.h5'"):
        train.train([*given, "--epochs", "4"])
    more = words(arrays, tmp_path / "more", "--method full --epochs 1")
    more += ["--weights", str(run.path / "model.weights.h5")]
    assert train.train(more).result["epochs"] == 1


def test_the_rate_rises_to_the_one_given_and_falls_to_zero():
    rate = et.optimizers.cosine(0.3, 40, warm_up=0.075)
    rising = [float(rate(step)) for step in range(4)]
    np.testing.assert_allclose(rising, [0.1, 0.5 / 3, 0.7 / 3, 0.3], rtol=1e-5)
    falling = [float(rate(step)) for step in range(3, 41)]
    assert falling == sorted(falling, reverse=True) and falling[-1] == pytest.approx(0.0, abs=1e-7)
