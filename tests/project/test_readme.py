"""The code and commands of the README and the guides run as they stand there, in a short form."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from networks import block, crossentropy, images, values
from pages import DOCS, ROOT, blocks
from tiny_runs import smaller

import elastic_tf as et
from elastic_tf import __main__ as program

README = ROOT / "README.md"
WORDS = 1000  # of the README, the citation and the tables included
SHORT = {
    "profile": "--repeats 3 --input-size 16",
    "elastic": "--epochs 1 --quiet --probe-size 32 --rho 1 --input-size 16",
    "full": "--epochs 1 --quiet --input-size 16",
}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the README's code takes as given, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    data = tf.data.Dataset.from_tensor_slices(images()).batch(4, drop_remainder=True)
    return {"keras_model": block(), "loss": crossentropy(), "train": data}


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= WORDS


@pytest.mark.slow
def test_one_call_runs_as_it_stands(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    whole = et.data.digits

    def some(**given):
        return [tuple(part[::4] for part in pair) for pair in whole(**given)]

    monkeypatch.setattr(et.data, "digits", some)
    exec(blocks(README, "python")[0].replace("seconds=120", "seconds=600, epochs=1"), names := {})
    assert "val_accuracy" in capsys.readouterr().out
    assert names["model"].evaluate(*names["held"], verbose=0)[1] > 0.8


def test_three_lines_run(names, capsys):
    # steps of a tiny network are nearly all forward pass: half of them would not do
    names["et"] = et
    exec(blocks(README, "python")[1].replace("rho=0.5", "rho=1.0"), names)
    assert "Epoch 12/12" in capsys.readouterr().out


def test_a_folder_is_learned_in_python(names):
    rng = np.random.default_rng(0)
    for k in range(36):
        path = Path("images", "dark" if k % 2 else "light", f"{k}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = np.clip(rng.normal(80 if k % 2 else 170, 9, (9, 9, 3)), 0, 255)
        tf.keras.utils.save_img(path, picture, scale=False)
    layers = [tf.keras.layers.Input((16, 16, 3)), tf.keras.layers.Rescaling(1 / 255)]
    layers += [tf.keras.layers.Conv2D(4, 3), tf.keras.layers.GlobalAveragePooling2D()]
    names |= {"et": et, "network": tf.keras.Sequential(layers)}
    code = blocks(README, "python")[2].replace("FOLDER", "images")
    loaded = re.search(r"network = et\.zoo\.build\(.*\)\n", code)  # its weights are a download
    code = code.replace(loaded[0], "").replace("=128", "=16")
    exec(code.replace("batch_size=16", "batch_size=4"), names)
    assert names["model"].evaluate(names["data"].test, verbose=0)[1] == 1.0
    kept = tf.keras.models.load_model("mine.keras")
    x, _ = next(iter(names["data"].test))
    np.testing.assert_allclose(kept(x), names["model"](x, training=False), rtol=1e-4, atol=1e-4)


def test_options_of_the_callback_run(names, capsys):
    model = et.ElasticModel.from_model(names["keras_model"])
    model.compile("adam", names["loss"])
    profile = et.profile_model(model, names["train"])
    names |= {"et": et, "model": model, "profile": profile}
    exec(blocks(DOCS / "start.md", "python")[0], names)
    model.fit(names["train"], epochs=2, callbacks=[names["callback"]], verbose=0)
    assert "Epoch 1: " in capsys.readouterr().out
    assert list(Path("backup").iterdir())


def test_mixin_of_the_guide_trains_what_the_plan_says():
    class MyModel(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = tf.keras.layers.Dense(4), tf.keras.layers.Dense(2)

        def call(self, inputs):
            return self.second(self.first(inputs))

    names = {"et": et, "tf": tf, "MyModel": MyModel}
    exec(blocks(DOCS / "guides" / "own_model.md", "python")[0], names)
    model, x = names["ElasticMine"](), np.ones((8, 3), np.float32)
    model(x)
    model.compile("sgd", "mse")
    model.set_mask(np.array([False, False, True, True]))
    before = values(model.tensors)
    model.fit(x, np.zeros((8, 2), np.float32), verbose=0)
    assert [a != b for a, b in zip(before, values(model.tensors))] == [False, False, True, True]


@pytest.mark.hours  # a minute; tests/commands has each of them
def test_commands_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    used = []
    (text,) = blocks(DOCS / "start.md", "bash")
    lines = (line.partition("#")[0] for line in text.replace("\\\n", " ").splitlines())
    with smaller():
        et.zoo.build("digits_resnet", classes=10, input_size=16).save_weights("small.weights.h5")
        for line in filter(None, lines):
            python, module, package, name, *words = shlex.split(line)
            assert (python, module, package) == (".venv/bin/python", "-m", "elastic_tf")
            used.append(name)
            if name in ("compare", "doctor", "export", "predict"):
                continue  # take long, or have no images here; their own tests run them
            words = [re.sub("^experiments/weights/.*", "small.weights.h5", word) for word in words]
            method = words[words.index("--method") + 1] if "--method" in words else name
            program.module(name).main([*words, *SHORT.get(method, "").split()])
    assert set(used) == set(program.COMMANDS)
    assert Path("runs/accuracy.png").is_file()
