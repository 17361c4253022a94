from __future__ import annotations

import os

# Some versions of jupyter_core 5 warn, when imported, that 6 will look for its files elsewhere.
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
os.environ["ELASTIC_TF_CACHE"] = ""  # one test teaches the next one nothing

import elastic_tf  # noqa: F401 (before TensorFlow and KerasCV: it chooses their Keras)

# isort: split
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism


@pytest.fixture
def deterministic():
    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()
