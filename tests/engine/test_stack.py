"""Which Keras is taken, and what is said where it is the wrong one."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import elastic_tf
from elastic_tf import stack
from elastic_tf.stack import tensorflow as seam

ROOT = Path(elastic_tf.__file__).parents[1]
INSIDE = re.compile(r"tensorflow\.(python|tsl)\b|keras\.src\b|import keras\b|from keras\b")
SWITCHES = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")
HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
IS_KERAS_3 = stack.KERAS_VERSION.startswith("3.")
only_keras_3 = pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 runs on TensorFlow alone")


def said(program: str, **environment: str) -> str:
    """The last line that a process of its own says."""
    given = {key: value for key, value in os.environ.items() if key not in SWITCHES}
    given.update(environment, TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True)
    return (found.stdout or found.stderr).strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TF_KERAS, reason="the package tf_keras is not installed")
def test_tf_keras_is_taken_where_you_ask_for_it():
    program = "import elastic_tf as et; print(et.stack.KERAS, et.ElasticModel.__mro__)"
    assert re.match(r"tf_keras .*tf_keras\.src\.", said(program, TF_USE_LEGACY_KERAS="1"))


@pytest.mark.slow
@pytest.mark.skipif(HAS_TF_KERAS, reason="the package tf_keras is installed")
def test_a_missing_tf_keras_is_named_with_what_to_do():
    message = said("import elastic_tf", TF_USE_LEGACY_KERAS="1")
    assert "'TF_USE_LEGACY_KERAS': '1'" in message and "install tf_keras or unset it" in message


@pytest.mark.slow
@only_keras_3
def test_another_backend_is_refused_with_what_to_do(monkeypatch):
    # where JAX is installed Keras loads and is refused, elsewhere it does not load
    message = said("import elastic_tf", KERAS_BACKEND="jax")
    assert re.match(r"ImportError: .*Received: .*'jax'.*KERAS_BACKEND.*tensorflow", message)
    monkeypatch.setattr(tf.keras.backend, "backend", lambda: "torch")
    with pytest.raises(ImportError, match=r"'torch'\. Set KERAS_BACKEND=tensorflow"):
        seam._is_keras2()


@pytest.mark.parametrize("version", ["3.0.5", "3.14.1", "2.14.0"])
def test_an_old_keras_is_refused_with_what_to_do(version, monkeypatch):
    monkeypatch.setattr(seam, "KERAS", "keras")
    monkeypatch.setattr(seam, "KERAS_VERSION", version)
    with pytest.raises(ImportError, match=rf"Received: Keras {version} .*pip install -U"):
        seam._is_keras2()


def test_only_the_seam_looks_inside_tensorflow_and_keras():
    home = Path(elastic_tf.__file__).parent
    found = {path for path in home.rglob("*.py") if INSIDE.search(path.read_text("utf-8"))}
    assert {path.parent.name for path in found} == {"stack"}
