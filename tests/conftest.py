from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism


@pytest.fixture
def deterministic():
    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()
