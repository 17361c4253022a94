"""What is taken from inside TensorFlow; nothing of it is promised."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
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
