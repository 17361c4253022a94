"""Which Keras is taken, and what is said where it is the wrong one."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

import elastic_tf
from elastic_tf import legacy_keras, stack

SWITCH = "TF_USE_LEGACY_KERAS"
INSIDE = re.compile(r"tensorflow\.(python|tsl)\b|keras\.src\b|import keras\b")


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these packages are installed, with these versions; and no switch is set."""
    monkeypatch.setenv(SWITCH, "")  # so that what is set meanwhile is taken back
    monkeypatch.delenv(SWITCH)

    def pretend(**versions: str) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(
            legacy_keras, "import_module", lambda name: SimpleNamespace(__version__=versions[name])
        )

    return pretend


def tensorflow(model_of: str) -> SimpleNamespace:
    """A TensorFlow 2.21 whose `tf.keras.Model` is of that module."""
    model = type("Model", (), {"__module__": model_of})
    return SimpleNamespace(__version__="2.21.0", keras=SimpleNamespace(Model=model))


def switch() -> str | None:
    return legacy_keras.os.environ.get(SWITCH)


def test_keras_2_is_asked_for_where_keras_3_is_installed(installed):
    installed(keras="3.15.1", tf_keras="2.21.0")
    legacy_keras.choose()
    assert switch() == "1"


def test_nothing_is_asked_for_without_keras_3(installed):
    installed(keras="2.15.0")
    legacy_keras.choose()
    assert switch() is None


def test_keras_2_is_taken_by_either_name(installed, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    installed(keras="3.15.1", tf_keras="2.21.0")
    assert legacy_keras.package(tensorflow("tf_keras.src.engine.training")) == "tf_keras"
    installed(keras="2.15.0")
    assert legacy_keras.package(tensorflow("keras.src.engine.training")) == "keras"


def test_keras_3_is_refused_with_what_to_do(installed):
    installed(keras="3.15.1", tf_keras="2.21.0")
    with pytest.raises(ImportError, match=r"2\.21\.0 with Keras 3\.15\.1.*TF_USE_LEGACY_KERAS=1"):
        legacy_keras.package(tensorflow("keras.src.models.model"))


def test_a_missing_tf_keras_is_named_with_its_version(installed):
    installed(keras="3.15.1")
    legacy_keras.choose()
    with pytest.raises(ImportError, match=r'without .*tf_keras.*pip install "tf_keras==2\.21\.\*"'):
        legacy_keras.package(tensorflow("keras.src.models.model"))


def test_this_process_runs_on_keras_2():
    assert legacy_keras.package(tf) == stack.KERAS
    assert issubclass(elastic_tf.ElasticModel, tf.keras.Model)
    assert tf.keras.Model.__module__.startswith(f"{stack.KERAS}.src.engine")


def test_only_one_module_looks_inside_tensorflow_and_keras():
    home = Path(elastic_tf.__file__).parent
    found = {path.name for path in home.rglob("*.py") if INSIDE.search(path.read_text("utf-8"))}
    assert found == {"stack.py"}
