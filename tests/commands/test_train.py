from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import worker

import elastic_tf as et
from elastic_tf.baselines.prunetrain import model as prunetrain
from elastic_tf.commands import plot, train
from elastic_tf.commands.training import harness, recording, step_bench
from elastic_tf.runs import run as runs
from elastic_tf.timing.runtime import RuntimeSettings

pytestmark = pytest.mark.filterwarnings("ignore:The machine is too busy")
SMALL = (
    "--model mobilenet --alpha 0.25 --weights none --input-size 32 --batch-size 2 --epochs 2 "
    "--optimizer adam --learning-rate 1e-3 --warm-head 1 --quiet "
    "--validation 0.25 "
)
SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "train.py"
ELASTIC = SMALL + "--rho 0.7 --interval 1 --probe-size 4 "


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Two classes of noise, one brighter, as PNG files."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for label, name in enumerate(("dark", "bright")):
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 120, (32, 32, 3)) + 120 * label
                png = tf.io.encode_png(tf.constant(pixels, tf.uint8)).numpy()
                (folder / part / name / f"{index}.png").write_bytes(png)
    return folder


@pytest.fixture(scope="module")
def elastic_run(images, tmp_path_factory) -> runs.Run:
    out = tmp_path_factory.mktemp("runs") / "elastic"
    return train.main([*ELASTIC.split(), "--data", str(images), "--out", str(out)])


@pytest.mark.slow
def test_train_writes_a_whole_run_directory(elastic_run):
    names = {path.name for path in elastic_run.path.iterdir()}
    assert names == {
        "config.json",
        "profile.json",
        "history.jsonl",
        "selections.jsonl",
        "result.json",
        "weights.h5",
    }
    loaded = runs.load(elastic_run.path)
    assert [epoch["epoch"] for epoch in loaded.history] == [0, 1]
    assert [selection["epoch"] for selection in loaded.selections] == [0, 1]
    assert loaded.config["settings"]["rho"] == 0.7
    assert loaded.config["versions"]["tensorflow"] == tf.__version__


@pytest.mark.slow
def test_train_keeps_the_budget_it_was_given(elastic_run):
    for selection in elastic_run.selections:
        assert selection["mask"][-2:].all()  # the head stays trained
        assert selection["predicted_ratio"] <= 0.7


@pytest.mark.slow
def test_train_says_what_came_out(elastic_run):
    result = json.loads((elastic_run.path / "result.json").read_text())
    assert result["method"] == "elastic"
    assert 0 <= result["accuracy"] <= 1
    assert result["training_seconds"] > 0
    assert result["seconds_per_step"] > 0
    assert result["achieved_ratio"] > 0


@pytest.mark.slow
def test_train_stores_weights_that_load_again(elastic_run):
    model = et.zoo.build("mobilenet", classes=2, input_size=32, alpha=0.25)
    before = model.get_weights()
    model.load_weights(elastic_run.path / "weights.h5")
    moved = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights())]
    assert any(moved)


@pytest.mark.slow
def test_train_prints_a_finished_run_again(elastic_run, images, capsys):
    arguments = [*ELASTIC.split(), "--data", str(images), "--out", str(elastic_run.path)]
    assert train.main(arguments).result == elastic_run.result
    assert "Finished before" in capsys.readouterr().out


@pytest.mark.slow
def test_train_refuses_the_directory_of_another_run(elastic_run, images):
    arguments = [*ELASTIC.split(), "--data", str(images), "--out", str(elastic_run.path)]
    with pytest.raises(ValueError, match="'learning_rate'.*0.001.*0.5"):
        train.main([*arguments, "--learning-rate", "0.5"])


@pytest.fixture(scope="module")
def full_run(images, tmp_path_factory) -> tuple[runs.Run, str]:
    """A run with bars, in a directory whose name must be quoted, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "in full"
    words = SMALL.replace("--quiet ", "").split()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run = train.main([*words, "--method", "full", "--data", str(images), "--out", str(out)])
    return run, said.getvalue()


@pytest.mark.slow
def test_train_full_trains_every_tensor(full_run):
    assert full_run[0].result["method"] == "full"
    assert full_run[0].selections == []


@pytest.mark.slow
def test_train_in_a_log_file_tells_each_epoch_in_a_line(full_run):
    said = full_run[1]
    assert said.count("Epoch 2/2\n") == 1
    assert not set("\r\b") & set(said)


@pytest.mark.slow
def test_train_names_a_small_validation_part_at_its_end(full_run):
    assert full_run[1].count("the validation part has 2 images") == 1


@pytest.mark.slow
def test_train_says_what_its_steps_did_not_take(full_run):
    run, said = full_run
    seconds = run.result["training_seconds"]
    beside = sum(epoch["overhead_seconds"] for epoch in run.history)
    assert f"Training: {beside:.1f} of its {seconds:.1f} s went into selecting" in said


@pytest.mark.slow
def test_train_ends_with_the_command_that_draws_it(full_run):
    run, said = full_run
    _, module, package, name, *words = shlex.split(said.splitlines()[-1].partition(": ")[2])
    assert (module, package, name) == ("-m", "elastic_tf", "plot")
    assert plot.main(words) == [run.path / "accuracy.png"]
    assert (run.path / "accuracy.png").is_file()


@pytest.mark.parametrize(
    ("quiet", "terminal", "expected"), [(True, True, 0), (False, True, 1), (False, False, 2)]
)
def test_a_bar_is_for_terminals(quiet, terminal, expected, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert harness.verbosity(quiet=quiet) == expected


@pytest.mark.slow
def test_train_refuses_a_profile_of_another_batch_size(images, tmp_path):
    count = 83
    table = et.TimingProfile.from_chain(t_dw=np.ones(count), t_dy=np.ones(count), t_forward=50.0)
    other = et.TimingProfile(table.t_forward, table.items, count, batch_size=8)
    other.save(tmp_path / "profile.json")
    arguments = [*ELASTIC.split(), "--data", str(images), "--out", str(tmp_path / "run")]
    with pytest.raises(ValueError, match=r"--batch-size 2 with --profile .* of batch size 8"):
        train.main([*arguments, "--profile", str(tmp_path / "profile.json")])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_train_takes_arrays_mixes_them_and_tells_the_time_to_accuracies(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (12, 40, 40, 3), np.uint8), np.arange(12) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    arguments = [*SMALL.split(), "--method", "bn_bias", "--data", str(tmp_path / "a.npz")]
    arguments += ["--augment", "cutmix,mixup", "--targets", "0.001,1"]
    result = train.main([*arguments, "--out", str(tmp_path / "run")]).result
    assert result["method"] == "bn_bias"
    assert set(result["seconds_to"]) == {"0.001", "1"}
    assert 0 < result["flops_ratio"] < 1
    assert result["full_step_seconds"] > 0 and result["activation_bytes"] > 0
    assert result["seconds_with_evaluation"] > result["training_seconds"]
    assert result["energy_joules"] == "no sensor" or result["energy_joules"] > 0
    assert 0 <= result["validation_accuracy"] <= 1
    for epoch in runs.load(tmp_path / "run").history:
        assert 0 < sum(last - first + 1 for first, last in epoch["trained"]) < epoch["tensors"]


def completed(*arguments):
    settings = train.parse(train.Settings, "", ["--data", "digits", "--out", "run", *arguments])
    return train.completed(settings)


def test_train_gives_each_method_the_options_that_it_takes():
    elastic = completed("--method", "elastic", "--interval", "5")
    assert (elastic.rho, elastic.interval, elastic.probe_size) == (0.5, 5, 64)
    full = completed("--method", "full")
    assert (full.rho, full.interval, full.probe_size) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["--method", "full", "--rho", "0.5"], "--rho is for the methods .*elastic.*0.5 for full"),
        (["--method", "bn_bias", "--probe-size", "8"], "--probe-size .*Received: 8 for bn_bias"),
        (["--rho", "1.7"], "`rho` must be .*rho=1.7"),
        (["--targets", "0.7,fast"], "`targets`.*Received: '0.7,fast'"),
        (["--targets", "70"], "`targets`.*Received: '70'"),
        (["--warm-up", "1"], "`warm_up` must be a share.*warm_up=1.0"),
        (["--warm-up", "0.1", "--schedule", "constant"], "Only the cosine.*warm_up=0.1"),
        (["--augment", "cutout"], "randaugment, cutmix, mixup. Received: 'cutout'"),
    ],
)
def test_train_refuses_options_that_do_not_fit(arguments, received):
    with pytest.raises(ValueError, match=received):
        completed(*arguments)


def test_the_rate_rises_to_the_one_given_and_falls_to_zero():
    rate = harness.rate("cosine", 0.3, 40, warm_up=3)
    rising = [float(rate(step)) for step in range(4)]
    np.testing.assert_allclose(rising, [0.1, 0.5 / 3, 0.7 / 3, 0.3], rtol=1e-5)
    falling = [float(rate(step)) for step in range(3, 41)]
    assert falling == sorted(falling, reverse=True) and falling[-1] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(
    ("option", "known"),
    [("--method", "traditional_tl"), ("--model", "vit_b16"), ("--optimizer", "sgdw")],
)
def test_train_names_what_it_knows_instead_of_an_unknown_name(option, known, capsys):
    with pytest.raises(SystemExit):
        completed(option, "magic")
    error = capsys.readouterr().err
    assert "invalid choice: 'magic'" in error and known in error


def test_train_names_the_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train.main(["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")])


@pytest.mark.slow
def test_train_names_the_file_that_is_no_image_and_trains_on_the_rest_if_told(images, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    (folder / "train" / "dark" / "broken.jpg").write_bytes(b"no image")
    arguments = [*SMALL.split(), "--method", "full", "--data", str(folder), "--out"]
    with pytest.raises(ValueError, match="broken.jpg"):
        train.main([*arguments, str(tmp_path / "one")])
    run = train.main([*arguments, str(tmp_path / "two"), "--skip-bad-images"])
    assert run.result is not None


def test_train_refuses_many_workers_without_their_names(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="TF_CONFIG. Received: none"):
        train.main([*arguments, "--strategy", "multiworker"])


@pytest.mark.slow
def test_train_goes_on_where_it_was_interrupted(images, tmp_path, monkeypatch):
    arguments = [*ELASTIC.split(), "--data", str(images), "--out", str(tmp_path / "run")]
    arguments += ["--epochs", "3"]

    class Broken(recording.TrainingClock):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            if epoch == 2:
                raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(recording, "TrainingClock", Broken)
        train.main(arguments)
    run = train.main(arguments)
    assert [epoch["epoch"] for epoch in run.history] == [0, 1, 2]
    assert [selection["epoch"] for selection in run.selections] == [0, 1, 2]
    assert run.result["epochs"] == 3
    assert run.result["warm_head_seconds"] == run.history[0]["warm_head_seconds"] > 0
    assert not (run.path / "backup").exists()


def start(images, out, strategy, **environment):
    """The command in a process of its own, with two logical devices."""
    code = (
        "import elastic_tf, tensorflow as tf, sys\n"
        "from elastic_tf.commands import train\n"
        "if sys.argv[-1] == 'mirrored':\n"
        "    two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "    cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "    tf.config.set_logical_device_configuration(cpu, two)\n"
        "train.main()\n"
    )
    options = ["--data", str(images), "--out", str(out), "--strategy", strategy]
    return subprocess.Popen(
        [sys.executable, "-c", code, *ELASTIC.split(), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "multiworker"])
def test_train_with_two_replicas_writes_one_run(strategy, images, tmp_path):
    places = worker.cluster() if strategy == "multiworker" else [{}]
    started = [start(images, tmp_path / "run", strategy, **place) for place in places]
    results = worker.finish(*started)
    assert [code for code, _ in results] == [0] * len(places), results[0][1][-3000:]
    assert ["Written to" in text for _, text in results] == [True, False][: len(places)]
    run = runs.load(tmp_path / "run")
    assert [epoch["epoch"] for epoch in run.history] == [0, 1]
    assert [selection["epoch"] for selection in run.selections] == [0, 1]
    assert run.result["achieved_ratio"] > 0
    et.zoo.build("mobilenet", classes=2, input_size=32, alpha=0.25).load_weights(
        tmp_path / "run" / "weights.h5"
    )


@pytest.mark.slow
def test_train_starts_again_under_the_settings_of_the_profile(elastic_run, images, tmp_path):
    measured = et.TimingProfile.load(elastic_run.path / "profile.json")
    settings = RuntimeSettings(inter_op_threads=2, intra_op_threads=1)
    path = tmp_path / "profile.json"
    device = {**measured.device, "inter_op_threads": 2, "intra_op_threads": 1}
    dataclasses.replace(measured, settings=settings, device=device).save(path)
    paths = ["--data", str(images), "--out", str(tmp_path / "run"), "--profile", str(path)]
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), *ELASTIC.split(), *paths],
        env={**RuntimeSettings().environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "profile: 2 inter-op threads, 1 intra-op threads." in finished.stdout
    assert "other settings" not in finished.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["device"]["inter_op_threads"] == 2


@pytest.mark.slow
def test_a_network_that_was_rebuilt_is_measured_and_saved_whole(images, tmp_path, monkeypatch):
    """PruneTrain finds nothing to remove in so few steps: the first channels stand for it."""

    def reconfigure(model, threshold):
        if model.removed:
            return 0
        site = next(site for site in model.channels.sites.values() if site.width is not None)
        model.remove(site.width[1][:2].tolist())
        return 2

    monkeypatch.setattr(prunetrain.PruneTrainModel, "reconfigure", reconfigure)
    words = f"{SMALL} --method prunetrain --interval 1 --data {images} --out {tmp_path / 'run'}"
    run = train.main(words.split())
    assert [epoch["rebuilds"] for epoch in run.history] == [0, 1]
    smaller = tf.keras.models.load_model(tmp_path / "run" / "network.keras")
    whole = et.zoo.build("mobilenet", classes=2, input_size=32, alpha=0.25, weights=None)
    assert smaller.count_params() < whole.count_params()
    assert smaller(np.zeros((1, 32, 32, 3), np.float32)).shape == (1, 2)
    assert 0 < run.result["achieved_ratio"]


@pytest.mark.slow
def test_a_run_that_ended_before_its_result_goes_on_there(images, tmp_path, monkeypatch):
    words = f"{SMALL} --method full --data {images} --out {tmp_path / 'run'}".split()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step_bench.Bench, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train.main(words)
    weights = (tmp_path / "run" / "weights.h5").stat().st_size
    run = train.main(words)
    assert [epoch["epoch"] for epoch in run.history] == [0, 1]  # none is trained again
    assert run.result["epochs"] == 2
    assert (tmp_path / "run" / "weights.h5").stat().st_size == weights
