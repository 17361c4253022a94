"""Traced passes that leave nothing behind: the order of the tensors, and what variables hold.

Variables are put back after a measured step, or compared with what they held.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.graph import READS, captured, members, nodes_of, reached_from
from elastic_tf.stack import memory, seeds_kept

# Ops that change what is no variable and has no way back.
_LASTING = frozenset(
    "LookupTableInsertV2 LookupTableRemoveV2 LookupTableImportV2 "
    "QueueEnqueueV2 QueueDequeueV2".split()
)


@contextmanager
def kept(model: tf.keras.Model, graphs: Iterable[Any]) -> Iterator[None]:
    """Put back, bit for bit, all that running traced functions of a model changes.

    That is every variable that one of their graphs writes to (weights, slots, step counts, moving
    statistics, random generators, metrics), and what tracing itself moves: the seeds that layers
    draw and the state of Python's and NumPy's generators.

    Raises:
        ValueError: a graph changes a table or a queue, which cannot be put back.
    """
    with host_generators_kept(model):
        values = {}
        for graph in graphs:
            for handle, dtype in _written(graph):
                if id(handle) not in values:
                    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                    values[id(handle)] = (handle, value)  # shares the buffer: no bytes copied yet
        try:
            yield
        finally:
            for handle, value in values.values():
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)


@contextmanager
def host_generators_kept(model: tf.keras.Model) -> Iterator[None]:
    """Put back the seeds that layers draw while traced, and Python's and NumPy's generators."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with seeds_kept(model):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _written(graph: Any) -> Iterator[tuple[tf.Tensor, tf.DType]]:
    """Handle and dtype of the variables that a traced function writes to."""
    for handle, inside in graph.captures:
        lasting = sorted({op.type for op in inside.consumers()} & _LASTING)
        if lasting:
            raise ValueError(
                "A training step may change variables only, for it is tried and taken back. "
                f"Received: the op {lasting[0]} on '{handle}'. Keep that state in a tf.Variable, "
                "or change it outside the step."
            )
        dtype = _dtype(handle)
        if dtype is not None and any(op.type not in READS for op in inside.consumers()):
            yield handle, dtype


def _dtype(handle: tf.Tensor) -> tf.DType | None:
    """Of the variable with that handle; None of a value, a table or an iterator."""
    about = getattr(handle, "_handle_data", None)
    if handle.dtype != tf.resource or about is None or not about.is_set:
        return None
    return tf.as_dtype(about.shape_and_type[0].dtype) if about.shape_and_type else None


class Fingerprint:
    """What some variables hold now, by their handles; those of tables are left out.

    A value that was read shares the variable's memory, and as long as somebody holds it TensorFlow
    writes elsewhere. A variable whose value is in the same place has not changed, whoever might
    have assigned to it: nothing is copied, and nothing compared. Where the place is another one,
    the bits decide.
    """

    def __init__(self, handles: Iterable[tf.Tensor]) -> None:
        self._variables = [(one, dtype) for one in handles if (dtype := _dtype(one)) is not None]
        self._held = self._read()

    def is_current(self) -> bool:
        """Whether each variable holds what it held at the beginning."""
        now = self._read()
        same = all(_is_same(memory(one), memory(two)) for one, two in zip(now, self._held))
        if same:
            self._held = now  # in the same place from now on
        return same

    def _read(self) -> list[tf.Tensor]:
        with tf.init_scope():  # also asked while a step is traced
            return [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                for handle, dtype in self._variables
            ]


def _is_same(one: np.ndarray, two: np.ndarray) -> bool:
    if one.ctypes.data == two.ctypes.data and one.size:
        return True
    bits_of_one, bits_of_two = (part.reshape(-1).view(np.uint8) for part in (one, two))
    return one.shape == two.shape and np.array_equal(bits_of_one, bits_of_two)


def forward_order(model: tf.keras.Model, graph: Any = None) -> list[tf.Variable]:
    """The trainable variables of `model` in the order in which the forward pass first uses them.

    `graph` is that of a `traced_pass` in training; None traces one.

    A tensor is used where its value first meets data: the first op, in tracing order, that depends
    both on the tensor and on the model's input. Tensors that meet the data in the same op (gamma
    and beta of a batch normalisation) keep their order in `model.trainable_variables`; tensors
    that the forward pass never uses come last.

    Raises:
        ValueError: the model is not built, or has no trainable tensor.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 5 (tensors sorted in execution order).
    """
    if graph is None:  # first: weights of a model that is not built cannot be told in Keras 2
        graph = traced_pass(model, input_spec(model), training=True).graph
    variables = stack.trainable(model)
    if not variables:
        raise ValueError(
            f"The model must have a trainable tensor. Received: model '{model.name}' with "
            f"{len(model.weights)} weights, none trainable. Set `layer.trainable = True` on the "
            "layers to adapt."
        )
    own = captured(graph, variables)
    held = {inside.op for _, inside in graph.captures}
    every = (1 << len(variables)) - 1
    roots = {tensor.op: every + 1 for tensor in graph.inputs if tensor.op not in held}
    nodes = nodes_of(graph.get_operations())
    flows = reached_from(nodes, {**roots, **{op: 1 << k for op, k in own.items()}})
    order: list[int] = []
    left = every
    for op in nodes:  # in tracing order
        if flows.get(op, 0) > every:
            order += members(flows[op] & left)
            left &= ~flows[op]
    return [variables[k] for k in (*order, *members(left))]


def traced_pass(model: tf.keras.Model, spec: Any, *, training: bool) -> Any:
    """The concrete function of a forward pass on such inputs; nothing runs."""
    run = tf.function(lambda inputs: stack.called(model, inputs, training))
    with host_generators_kept(model), stack.never_differentiated():
        return run.get_concrete_function(spec)


def input_spec(model: tf.keras.Model) -> Any:
    """Nested `tf.TensorSpec` of what `model`, which must be built, is called with."""
    spec = stack.input_spec(model)
    if spec is None:
        raise ValueError(
            f"The model must be built. Received: model '{model.name}' that has never seen an "
            "input. Call it once on a batch: model(x)."
        )
    return spec
