"""What the commands say before a training."""

import dataclasses
import json
import subprocess
import types

import pytest
import tensorflow as tf
from tiny_runs import NETWORK

import elastic_tf as et
from elastic_tf.app.commands import before
from elastic_tf.timing.profile import TensorSpec


@pytest.fixture
def child(monkeypatch):
    """Sets what child processes end with."""

    def ends(code=0, out="", error=""):
        done = types.SimpleNamespace(returncode=code, stdout=out, stderr=error)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    return ends


def test_the_child_trains_a_step_and_tells_the_device(child, capsys):
    exec(before._STEP, {})
    child(out=capsys.readouterr().out)
    before.doctor([])
    said = capsys.readouterr().out
    assert " trains on " in said and said.splitlines()[-1] == "Ready to train."


@pytest.mark.parametrize(
    ("said", "is_wrong"),
    [
        ("No broken requirements found.\n", False),
        ("other 1.0 requires two, which is not installed.\n", False),
        ("elastic_tf 0.1.0 has requirement two>=2, but you have two 1.0.\n", True),
    ],
)
def test_packages_are_compared_with_what_is_asked_for(child, said, is_wrong):
    child(out=said)
    assert ("two>=2" in before.packages()) == is_wrong


@pytest.mark.parametrize(
    ("code", "said", "fix"),
    [
        (1, "Traceback\nImportError: no libfoo\n", "TensorFlow: ImportError: no libfoo. Look"),
        (-4, "", "need AVX"),
        (-9, "", "TensorFlow: ended with code -9. Look at ulimit -a"),
    ],
)
def test_a_tensorflow_that_does_not_train_ends_with_1(child, capsys, code, said, fix):
    child(code, error=said)
    with pytest.raises(SystemExit, match="1"):
        before.doctor([])
    assert fix in capsys.readouterr().out


def test_tensorflow_that_hangs_is_told(monkeypatch):
    monkeypatch.setattr(before, "_STEP", "import time; time.sleep(60)")
    monkeypatch.setattr(before, "_SECONDS", 0.2)
    assert "no step in 0.2 s" in before.trains()


def test_profile_writes_the_profile_that_it_prints(tmp_path, capsys):
    path = tmp_path / "deep" / "profile.json"
    before.profile(f"{NETWORK} --classes 3 --repeats 3 --optimizer sgd --out {path}".split())
    stored = et.TimingProfile.load(path)
    assert (stored.count, stored.batch_size, stored.input_shape) == (8, 4, ((16, 16, 1),))
    said = capsys.readouterr().out
    assert "of the backward time attributed to 8 tensors" in said
    costliest = max(range(8), key=lambda k: stored.t_dw[k] + stored.t_dy[k])
    lines = said.splitlines()
    rule = next(place for place, line in enumerate(lines) if line.startswith("---"))
    assert lines[rule + 1].startswith(stored.tensors[costliest].name)


@pytest.mark.parametrize(("spread", "said"), [(0.1, "is fine"), (0.11, "spread is above 10%")])
def test_profile_says_whether_to_rely_on_it(spread, said):
    chain = et.TimingProfile.from_chain(t_dw=[1e3, 2e3], t_dy=[0, 3e3], t_forward=4e3)
    specs = tuple(TensorSpec(f"{k}/kernel", (2,), "float32") for k in range(2))
    told = {"tensors": specs, "device": {"name": "x", "cores": 2}, "batch_size": 4}
    assert said in before.told(dataclasses.replace(chain, **told, spread=spread))


FORECAST = "--model digits_resnet --input-size 16 --batch-size 4 --epochs 2 --rho 0.6".split()
WAYS = ("head alone", "elastic, rho=0.6", "full")


def forecast(capsys, *more):
    """The titles that are printed, and the words of the row of each way."""
    before.forecast([*FORECAST, *map(str, more)])
    titles, *lines = capsys.readouterr().out.splitlines()
    return titles, {name: line.split() for line in lines for name in WAYS if line.startswith(name)}


def test_forecast_prints_a_table_of_three_ways(capsys):
    titles, rows = forecast(capsys, "--images", 10)
    assert titles.split() == ["training", "tensors", "images", "epochs", "seconds", "MiB"]
    # two batches of four; both weights of the head, all of two blocks and the head
    assert rows["head alone"][2:5] == ["2", "8", "0"]
    assert rows["full"][1:4] == ["8", "16", "2"]
    assert rows["elastic, rho=0.6"][3:5] == ["16", "2"]


def test_images_and_classes_are_those_of_the_data(tmp_path, capsys):
    for name in ("cat", "dog", "newt"):
        (tmp_path / name).mkdir()
        for k in range(10):  # of which two are for tests
            (tmp_path / name / f"{k}.png").write_bytes(b"not looked at")
    _, found = forecast(capsys, "--data", tmp_path)
    _, expected = forecast(capsys, "--images", 24, "--classes", 3)
    for name in WAYS:  # but for the seconds
        assert found[name][:-2] + found[name][-1:] == expected[name][:-2] + expected[name][-1:]


MEMORY = "--model digits_resnet --input-size 28 --classes 10 --batch-size 8".split()


def test_the_table_and_the_verdict_say_the_same_as_the_numbers(capsys, tmp_path):
    def step(path, *words):
        before.memory([*MEMORY, *words, "--out", str(path)])
        return json.loads(path.read_text())

    peak = step(tmp_path / "step.json")["peak"]
    assert step(tmp_path / "last.json", "--last", "2")["peak"] < peak
    before.memory([*MEMORY, "--limit", str(peak), "--out", str(tmp_path / "step.png")])
    said = capsys.readouterr().out
    assert f"TensorFlow takes {peak / 2**20:.1f} MiB" in said
    assert "it fits; the largest batch that does is 8" in said
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    before.memory([*MEMORY, "--limit", str(peak - 1)])
    assert "it does not fit; the largest batch that does is 7" in capsys.readouterr().out
    before.memory([*MEMORY, "--limit", "10 KiB"])
    assert "it does not fit; no batch does" in capsys.readouterr().out


def test_a_network_of_ones_own_is_taken(capsys, tmp_path):
    L, file = tf.keras.layers, tmp_path / "mine.keras"
    layers = [L.Conv2D(4, 3), L.GlobalAveragePooling2D(), L.Dense(7)]
    tf.keras.Sequential([L.Input((None, None, 3)), *layers]).save(file)
    words = f"--model {file} --input-size 16 --batch-size 4".split()
    before.profile([*words, "--classes", "2", "--out", f"{tmp_path}/times.json"])
    assert "4 tensors" in capsys.readouterr().out
    tf.keras.Sequential([L.Input((16, 16, 3)), *layers]).save(file)
    before.forecast([*words, "--images", "12"])
    assert "head alone" in capsys.readouterr().out
    before.memory(words)
    assert "Batch 4: TensorFlow takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words", "error", "received"),
    [
        (before.profile, "--classes 3 --out file/p.json", OSError, "file"),
        (before.profile, "--out p.json", ValueError, "`data` and `classes`.*Received: none"),
        (before.forecast, "--model mobilenet", ValueError, "One of `data` and `images`"),
        (before.forecast, "--batch-size 4 --images 3", ValueError, "`batch_size`.*Received: 4"),
        (before.memory, "--limit 12MB", ValueError, "limit='12MB'"),
        (before.memory, f"{' '.join(MEMORY)} --last 0", ValueError, "Received: 0"),
    ],
)
def test_what_cannot_be_done_is_refused(command, words, error, received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=received):
        command(words.split())
