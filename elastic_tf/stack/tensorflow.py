"""Which Keras `tf.keras` is, its variables, and what is taken from inside TensorFlow.

Nothing of the latter is promised.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.eager import context as context
from tensorflow.python.framework import op_def_registry as op_def_registry
from tensorflow.python.framework.function_def_to_graph import (
    function_def_to_graph as function_def_to_graph,
)
from tensorflow.python.framework.ops import gradient_registry as gradient_registry
from tensorflow.python.ops import stateful_random_ops as stateful_random_ops
from tensorflow.python.util import _pywrap_util_port
from tensorflow.tsl.profiler.protobuf import xplane_pb2 as xplane_pb2

_OLDEST = (3, 15)

try:
    #: The package that `tf.keras` is: "keras", or "tf_keras" where TF_USE_LEGACY_KERAS=1 says so.
    KERAS: str = tf.keras.Model.__module__.partition(".")[0]
except ImportError as error:
    switches = {key: os.environ.get(key) for key in ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")}
    raise ImportError(
        f"TensorFlow {tf.__version__} cannot load Keras. Received: {switches}. Where "
        "TF_USE_LEGACY_KERAS is 1, install tf_keras or unset it; KERAS_BACKEND must be "
        "tensorflow or unset."
    ) from error
#: Its version, for messages.
KERAS_VERSION: str = import_module(KERAS).__version__


def _is_keras2() -> bool:
    """Whether it is Keras 2; an ImportError if it is too old, or does not run on TensorFlow."""
    major, minor = (int(part) for part in KERAS_VERSION.split(".")[:2])
    if (major, minor) == (2, 15) or major == 2 and KERAS == "tf_keras":
        return True
    if (major, minor) < _OLDEST:
        raise ImportError(
            f"elastic_tf needs Keras {_OLDEST[0]}.{_OLDEST[1]} or later, or Keras 2.15 beside "
            f"TensorFlow 2.15. Received: Keras {KERAS_VERSION} beside TensorFlow {tf.__version__}. "
            "Install the newest: pip install -U tensorflow keras."
        )
    backend = tf.keras.backend.backend()
    if backend != "tensorflow":
        raise ImportError(
            "elastic_tf trains Keras models on TensorFlow. Received: Keras "
            f"{KERAS_VERSION} with the backend {backend!r}. Set KERAS_BACKEND=tensorflow in the "
            "environment, or in ~/.keras/keras.json, before Keras is imported."
        )
    return False


IS_KERAS2 = _is_keras2()


def raw(variable: Any) -> tf.Variable:
    """The `tf.Variable` of a variable of Keras.

    Not its `value`, which is a cast copy while a layer is called under mixed precision. Its name is
    Keras's path.
    """
    if IS_KERAS2 or not isinstance(variable, tf.keras.Variable):
        return variable
    found = variable._value
    if hasattr(found, "_handle_name"):  # which lacks the layer, in a model with a `call` of its own
        found._handle_name = f"{variable.path}:0"
    return found


def trainable(part: Any) -> list[tf.Variable]:
    """The trainable variables of a model or a layer, in Keras's order."""
    return [raw(variable) for variable in part.trainable_variables]


def weights(part: Any) -> list[tf.Variable]:
    """The weights of a model or a layer, in Keras's order."""
    return [raw(variable) for variable in part.weights]


def variables_of(part: Any) -> list[tf.Variable]:
    """All that a model, a layer or a metric holds, random generators and metrics too."""
    return [raw(variable) for variable in part.variables]


def own_variables(layer: Any) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """What a layer itself can train, frozen or not, and its buffers."""
    kind = "weights" if IS_KERAS2 else "variables"
    parts = getattr(layer, f"_trainable_{kind}"), getattr(layer, f"_non_trainable_{kind}")
    own, buffers = ([raw(variable) for variable in part] for part in parts)
    return own, buffers


@contextlib.contextmanager
def attributes(owner: object, **others: object) -> Iterator[None]:
    """Other attributes of an object, past `setattr`, by which Keras tracks what is put there."""
    own = vars(owner)
    before = {name: own[name] for name in others if name in own}
    own.update(others)
    try:
        yield
    finally:
        own.update(before)
        for name in others.keys() - before.keys():
            del own[name]


# As TensorFlow's own code and Keras's, ours is traced as it stands: steps are traced in two thirds
# of the time. What you wrote, layers and losses, is still converted.
autograph.CONVERSION_RULES = (
    autograph.DoNotConvert(__package__.partition(".")[0]),
    *autograph.CONVERSION_RULES,
)

_ONE_PASS = tf.compat.v1.ConfigProto()
_ONE_PASS.graph_options.rewrite_options.meta_optimizer_iterations = 1

_tracing = threading.Lock()
_tracers: list[None] = []  # one for each context of `never_differentiated`
_known: set[str] = set()  # gradients that were registered before the first of them


def memory(tensor: Any) -> Any:
    """The values of an eager tensor as a NumPy array; on a CPU the tensor's own memory."""
    return np.asarray(tensor._numpy())


def runs_onednn() -> bool:
    """Whether oneDNN's kernels are on."""
    return bool(_pywrap_util_port.IsMklEnabled())


def convolves_groups(dtype: str = "float32") -> bool:
    """Whether one op convolves several groups, and its gradients are there: oneDNN's, a GPU's.

    oneDNN has no double precision, and half precision with AVX-512 alone.
    """
    is_there = runs_onednn() and dtype == "float32"
    return is_there or bool(tf.config.list_physical_devices("GPU"))


@contextlib.contextmanager
def optimized_once() -> Iterator[None]:
    """Let TensorFlow optimise the graph of a function in one pass; for each of its calls.

    A second one changed 2 of 6,575 nodes of a step of MobileNetV2, for a quarter of its first call.
    """
    now = context.context()
    before = now.function_call_options
    once = context.FunctionCallOptions(executor_type=before.executor_type)
    merged = before.config_proto_serialized + _ONE_PASS.SerializeToString()
    now.function_call_options, once._config_proto_serialized = once, merged
    try:
        yield
    finally:
        now.function_call_options = before


@contextlib.contextmanager
def traced_once() -> Iterator[None]:
    """Variables that Keras makes beside a trace, in this context, do not make it traced again.

    TensorFlow traces a function twice whose first trace made variables, lest the second make more.
    Metrics make theirs in the first step, but outside of its graph, once.
    """

    def made(next_creator: Any, **options: Any) -> Any:
        if tf.executing_eagerly():  # not in the graph
            options["experimental_enable_variable_lifting"] = False
        return next_creator(**options)

    with tf.variable_creator_scope(made):
        yield


@contextlib.contextmanager
def never_differentiated() -> Iterator[None]:
    """Forget the custom gradients of what is traced in this context; nobody will ask for them.

    In a graph, `tf.custom_gradient` (in `tf.nn.silu`) enters
    a closure over the graph into TensorFlow's global gradient registry, under a name used once.
    TensorFlow 2.15 never removes it, so that the graph outlives the function it belongs to. The
    entry serves to differentiate the finished function, which makes no sense for a training step.
    """
    registry = gradient_registry._registry
    with _tracing:
        _tracers.append(None)
        if len(_tracers) == 1:
            _known.update(registry)
    try:
        yield
    finally:
        with _tracing:
            _tracers.pop()
            # another thread may still differentiate what it traces
            if not _tracers:
                for name in set(registry) - _known:
                    if name.startswith("CustomGradient-"):
                        registry.pop(name, None)
                _known.clear()
