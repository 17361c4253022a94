"""Without its extras the package trains, and says which one is missing where it is needed."""

import subprocess
import sys

import pytest

import elastic_tf as et
from elastic_tf.app.commands import commandline

NETWORK = {"classes": 2, "input_size": 32}
NEEDS = {
    "sklearn": ("data", et.data.digits),
    "tensorflow_datasets": ("data", lambda: et.data.tfds_images("mnist", batch_size=4)),
    "keras_cv": ("zoo", lambda: et.zoo.build("vit_ti16", **NETWORK)),
}


def hide(package, monkeypatch):
    """As if a package were not installed, whatever was imported of it."""
    for name in {package, *(one for one in sys.modules if one.startswith(f"{package}."))}:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("package", NEEDS)
def test_a_missing_package_names_its_extra(package, monkeypatch):
    extra, call = NEEDS[package]
    hide(package, monkeypatch)
    with pytest.raises(ImportError, match=rf'{package}.* pip install "elastic_tf\[{extra}\]"'):
        call()


def test_federated_training_names_its_extra(monkeypatch):
    hide("flwr", monkeypatch)
    for name in [one for one in sys.modules if one.startswith("elastic_tf.federated")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(et), "federated", raising=False)
    with pytest.raises(ImportError, match=r'flwr.* pip install "elastic_tf\[fleet\]"'):
        et.federated  # noqa: B018 (loads it)


def test_a_missing_package_is_one_line_on_the_command_line(monkeypatch, capsys):
    hide("sklearn", monkeypatch)
    with pytest.raises(SystemExit, match="2"):
        commandline.run(et.data.digits)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


@pytest.mark.slow
def test_all_but_the_extras_works_without_them():
    code = (
        "import sys\n"
        "for name in ('sklearn', 'matplotlib', 'PIL', 'keras_cv', 'tensorflow_datasets', 'flwr'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, elastic_tf as et, tensorflow as tf\n"
        "et.zoo.build('digits_resnet', classes=2, input_size=16)\n"
        "L = tf.keras.layers\n"
        "network = tf.keras.Sequential([L.Input((4,)), L.Dense(3, 'relu'), L.Dense(2)])\n"
        "x, y = np.random.rand(16, 4).astype('float32'), np.arange(16) % 2\n"
        "et.finetune(network, (x, y), seconds=600, epochs=1, verbose=0)\n"
        "try:\n"
        "    et.plots\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "matplotlib" in done.stdout and '"elastic_tf[plots]"' in done.stdout
