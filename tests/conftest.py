import gc
import os
import sys

import pytest

# Some versions of jupyter_core 5 warn, when imported, that 6 will look for its files elsewhere.
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")


def pytest_configure(config) -> None:
    config.option.loadscopereorder = False  # of pytest-xdist, which would begin with many tests


def pytest_collectstart() -> None:
    """Loads TensorFlow where tests run; the process that only hands them out needs no seconds."""
    if "tensorflow" in sys.modules:
        return
    import elastic_tf  # noqa: F401 (before TensorFlow: it quiets its start-up)

    # isort: split
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    dataset_ops.DatasetV2._apply_debug_options = untuned
    # Each core has a process of its own: a second thread made the tests 15 % slower.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    gc.freeze()  # TensorFlow's own objects stay: each search through them takes 0.3 seconds


def untuned(dataset):
    """What is iterated over: TensorFlow may wait long for its tuning thread at each end."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def pytest_collection_modifyitems(items) -> None:
    """Files with slow tests come first: processes that share the files end together then."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def deterministic():
    import tensorflow as tf
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


@pytest.fixture
def as_keras_writes_them(monkeypatch):
    """Layers give what those of Keras give, to the bit."""
    monkeypatch.setattr("elastic_tf.train.engine.operations.IS_ON", False)
