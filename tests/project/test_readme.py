"""The README's code and commands run as they stand there, the long ones in a short form."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from launches import Launches
from networks import crossentropy, images, network
from test_compare import made

from elastic_tf.__main__ import COMMANDS
from elastic_tf.commands import compare

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SHORT = {
    "profile": "--as-is --repeats 3 --input-size 16",
    "elastic": "--epochs 1 --quiet --probe-size 32 --rho 0.9 --input-size 16",
    "full": "--epochs 1 --quiet --input-size 16",
}


def block(heading: str, language: str = "python") -> str:
    """The first block of that language below a heading."""
    text = README.read_text(encoding="utf-8").split(f"## {heading}\n")[1]
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.filterwarnings("ignore:The machine is too busy")
def test_ten_lines_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = tf.data.Dataset.from_tensor_slices(images()).batch(4, drop_remainder=True)
    # steps of a tiny network are nearly all forward pass: half of them would not do
    code = block("Ten lines").replace("rho=0.5", "rho=1.0")
    exec(code, {"keras_model": network(), "loss": crossentropy(), "train": data})
    assert (tmp_path / "profile.json").is_file()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-4:]] == [
        "0",
        "3",
        "6",
        "9",
    ]


def test_mixin_trains_what_the_mask_says():
    class MyModel(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = tf.keras.layers.Dense(4)
            self.second = tf.keras.layers.Dense(2)

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.second(self.first(inputs))

    import elastic_tf as et

    names = {"et": et, "tf": tf, "MyModel": MyModel}
    exec(block("Your own model"), names)
    model = names["ElasticMine"]()
    x = np.ones((8, 3), np.float32)
    model(x)
    model.compile("sgd", "mse")
    model.set_mask(np.array([False, False, True, True]))
    before = [v.numpy() for v in model.tensors]
    model.fit(x, np.zeros((8, 2), np.float32), verbose=0)
    moved = [not np.array_equal(a, v.numpy()) for a, v in zip(before, model.tensors)]
    assert moved == [False, False, True, True]


@pytest.mark.filterwarnings("ignore:The machine is too busy")
def test_deadline_runs(tmp_path, monkeypatch, capsys):
    import elastic_tf as et

    monkeypatch.chdir(tmp_path)
    data = tf.data.Dataset.from_tensor_slices(images()).batch(4, drop_remainder=True)
    model = et.ElasticModel.from_model(network())
    model.compile("adam", crossentropy())
    profile = et.profile_model(model, *next(iter(data)))
    names = {"et": et, "model": model, "profile": profile, "train": data}
    exec(block("A budget that is kept"), names)
    said = capsys.readouterr().out
    assert "Deadline 600 s" in said
    assert said.splitlines()[-6].startswith("epoch")  # titles, a rule, four selections
    assert list((tmp_path / "runs" / "board").glob("events*"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The machine is too busy")
def test_commands_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = block("On the command line", "bash").replace("\\\n", " ")
    used = []
    for line in filter(None, (line.partition("#")[0] for line in text.splitlines())):
        python, module, package, name, *words = shlex.split(line)
        assert (python, module, package) == (".venv/bin/python", "-m", "elastic_tf")
        used.append(name)
        words = [word.replace("experiments/", f"{ROOT}/experiments/") for word in words]
        method = words[words.index("--method") + 1] if "--method" in words else name
        words += SHORT.get(method, "").split()
        if name == "compare":  # trains too much for a test
            result = compare.main(words, Launches(made))
            assert len(result["tables"]["equal_seconds"]) == 3
        else:
            importlib.import_module(f"elastic_tf.commands.{name}").main(words)
    assert set(used) == set(COMMANDS)
    assert {path.name for path in Path("runs").glob("*.png")} == {
        "accuracy.png",
        "accuracy_elastic_rho_0.9.png",
    }
