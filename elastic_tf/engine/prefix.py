"""The frozen prefix of a step: ops whose result for a sample never changes while a plan is trained.

With every tensor before a cut frozen, the activations on the cut are the same at each visit of a
sample. They are computed once, and a traced step takes them instead of the model's inputs. The cut
is found in the traced graph, by data flow, so that any Keras model and any `train_step` can be cut:
an op belongs to the prefix if it depends on the inputs and on nothing that is trained, written,
drawn at random, or a target. Whatever takes a result of the prefix from outside it is handed the
cached value; the prefix itself is then dead and is dropped from the executed graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.engine import freezing
from elastic_tf.engine.snapshot import READS, host_generators_kept
from elastic_tf.files.arrays import array
from elastic_tf.inputs.samples import Samples

_ROWS = 64  # in a forward pass that fills a cache
_ALIKE = 1e-3  # relative difference of activations of one sample in two batches


class Cut(NamedTuple):
    """Where a traced graph is cut.

    Attributes:
        tensors: results of the prefix that an op outside it, or the caller, takes; none where
            nothing can be computed beforehand.
        prefix: the ops whose results never change, those that hold the inputs among them.
        inputs: the latter.
    """

    tensors: list[tf.Tensor]
    prefix: frozenset[tf.Operation]
    inputs: frozenset[tf.Operation]

    def kinds(self) -> list[tuple[str, tf.DType, list[int | None]]]:
        """What tells whether two traces were cut alike: op type, dtype, shape for one sample."""
        return [
            ("" if t.op in self.inputs else t.op.type, t.dtype, t.shape[1:].as_list())
            for t in self.tensors
        ]


class PrefixCache:
    """The activations on the cut of a model, for every row of some samples.

    Args:
        model: a built elastic model.
        samples: what it is trained on.
        trained: variables that may be trained while the cache is in use.
        memory: bytes that may be kept in memory; beyond, they go into a temporary file.
        rows: in a forward pass; the batch size of training where another one changes the last bit
            of an op's result.

    Attributes:
        trained: ids of these variables.
        is_worth_it: whether there is anything to compute beforehand.
        bytes: of the activations.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        samples: Samples,
        trained: Sequence[tf.Variable],
        *,
        memory: int,
        rows: int = _ROWS,
    ) -> None:
        self._samples, self._variables = samples, list(trained)
        self.trained = {id(variable) for variable in trained}
        with host_generators_kept(model):
            read, self._kinds = _reader(model, samples, self._variables, min(rows, samples.rows))
        self.is_worth_it = bool(self._kinds)
        sizes = [int(np.prod(shape)) * dtype.size for _, dtype, shape in self._kinds]
        self.bytes = samples.rows * sum(sizes)
        left = memory if self.bytes <= memory else 0  # all of them in memory, or none
        self._arrays = [
            array((samples.rows, *shape), dtype.as_numpy_dtype, memory=left)
            for _, dtype, shape in self._kinds
        ]
        if self.is_worth_it:
            self._fill(read, min(rows, samples.rows))

    def serves(self, trained: Sequence[tf.Variable]) -> bool:
        """Whether steps that train these variables alone can take the activations."""
        return self.is_worth_it and {id(variable) for variable in trained} <= self.trained

    def step(self, train_step: Callable[[Any], Any], rows: tf.Tensor) -> Any:
        """Trace a step that takes the activations in the place of the inputs.

        Args:
            train_step: function from a batch to logs, as in Keras.
            rows: numbers of the rows, of a fixed shape.
        """
        inputs = self._samples.inputs(rows.shape[0])
        logs = train_step((inputs, *self._samples.targets(rows)))
        graph = tf.compat.v1.get_default_graph()
        results = [part for part in tf.nest.flatten(logs) if tf.is_tensor(part)]
        cut = find_cut(graph, tf.nest.flatten(inputs), results, self._variables)
        if cut.kinds() != self._kinds:
            raise ValueError(
                "The step must run the model's forward pass once, as it is. Received: a step that "
                f"is cut at {cut.kinds()}, where the forward pass is cut at {self._kinds}. Train "
                "it with Samples(..., memory=0)."
            )
        hand_over(cut, self._take(rows))
        return logs

    def close(self) -> None:
        """Forget the activations; a file that holds them is removed."""
        self._arrays = []

    def _take(self, rows: tf.Tensor) -> list[tf.Tensor]:
        types = [dtype for _, dtype, _ in self._kinds]
        taken = tf.numpy_function(
            lambda numbers: [kept[numbers] for kept in self._arrays], [rows], types
        )
        for part, (_, _, shape) in zip(taken, self._kinds):
            part.set_shape((rows.shape[0], *shape))
        return list(taken)

    def _fill(self, read: Callable[[tf.Tensor], list[tf.Tensor]], size: int) -> None:
        every = np.arange(self._samples.rows)
        for start in range(0, len(every), size):
            rows = np.resize(every[start : start + size], size)  # the last ones again, if too few
            for kept, part in zip(self._arrays, read(tf.constant(rows))):
                kept[rows] = part.numpy()
        # another batch: some of the rows, twice
        mixed = np.random.default_rng(0).permutation(len(every))[: max(size // 2, 1)]
        for kept, part in zip(self._arrays, read(tf.constant(np.resize(mixed, size)))):
            if not np.allclose(kept[mixed], part[: len(mixed)], rtol=_ALIKE, atol=_ALIKE):
                raise ValueError(
                    "What is computed of a sample must not depend on the others in its batch. "
                    "Received: activations before the first trained tensor that change with the "
                    "batch. Train with Samples(..., memory=0)."
                )


def _reader(
    model: tf.keras.Model, samples: Samples, variables: Sequence[tf.Variable], size: int
) -> tuple[Callable[[tf.Tensor], list[tf.Tensor]], list[Any]]:
    """A function from `size` row numbers to the activations on the cut, and the cut's kinds."""
    found: list[Cut] = []

    def forward(rows: tf.Tensor) -> None:
        inputs = tf.nest.map_structure(tf.identity, samples.take(rows)[0])
        with freezing.frozen(freezing.left_out(model, variables)):
            results = tf.nest.flatten(model(inputs, training=True))
        graph = tf.compat.v1.get_default_graph()
        found.append(find_cut(graph, tf.nest.flatten(inputs), results, variables))

    whole = tf.compat.v1.wrap_function(forward, [tf.TensorSpec((size,), tf.int64)])
    (cut,) = found
    if not cut.tensors:
        return lambda rows: [], []
    # what lies behind the cut, updates of moving statistics too, is not to run
    return whole.prune(whole.inputs[:1], cut.tensors), cut.kinds()


def find_cut(
    graph: Any,
    inputs: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    trained: Collection[tf.Variable],
) -> Cut:
    """The cut of a graph that was traced for inputs of a fixed batch size.

    With a batch size that is not fixed, shapes are results of ops, and cut the graph elsewhere.

    Args:
        graph: FuncGraph of a forward pass or a whole step.
        inputs: what holds the samples, each (batch, ...).
        results: what the function will return.
        trained: variables that change while the cut is in use.

    Returns:
        The cut; without tensors where nothing can be computed beforehand.
    """
    batch = inputs[0].shape[0]
    sources = {tensor.op for tensor in inputs}
    wanted = {id(tensor) for tensor in results}
    fixed = _fixed(graph, {id(variable.handle) for variable in trained})
    excluded: set[tf.Operation] = set()
    while True:
        prefix = _prefix(graph, sources, fixed, excluded)
        crossing = [
            tensor
            for op in graph.get_operations()  # in tracing order: equal traces give equal lists
            if op in prefix
            for tensor in op.outputs
            if id(tensor) in wanted or any(user not in prefix for user in tensor.consumers())
        ]
        # what has no row for each sample (a sum over the batch, a shape) is computed in the step
        without_rows = {
            tensor.op
            for tensor in crossing
            if tensor.op not in sources and (not tensor.shape.rank or tensor.shape[0] != batch)
        }
        if not without_rows:
            break
        excluded |= without_rows
    deep = any(tensor.op not in sources for tensor in crossing)
    return Cut(crossing if deep else [], frozenset(prefix), frozenset(sources))


def hand_over(cut: Cut, values: Sequence[tf.Tensor]) -> None:
    """Let everything outside the prefix take `values` instead of the tensors of the cut.

    To be called while the step is traced, after its last op.

    Args:
        cut: of the graph that is being traced.
        values: a tensor for each of the cut's.
    """
    for tensor, value in zip(cut.tensors, values):
        for user in tensor.consumers():
            if user not in cut.prefix:
                for place, taken in enumerate(user.inputs):
                    if taken is tensor:
                        user._update_input(place, value)


def _prefix(
    graph: Any,
    sources: Collection[tf.Operation],
    fixed: Collection[int],
    excluded: Collection[tf.Operation],
) -> set[tf.Operation]:
    """The ops that depend on a source and, beside sources, on nothing but what is fixed."""
    constant: set[tf.Operation] = set()
    prefix = set(sources)
    for op in graph.get_operations():
        if op in prefix or op in excluded:
            continue
        if op.type == "Placeholder":
            if all(id(tensor) in fixed for tensor in op.outputs):
                constant.add(op)
            continue
        if op.op_def.is_stateful and op.type not in READS:
            continue  # draws at random, writes, or calls what may
        before = {tensor.op for tensor in op.inputs}
        if before <= constant:
            constant.add(op)
        elif before <= constant | prefix:
            prefix.add(op)
    return prefix


def _fixed(graph: Any, trained: Collection[int]) -> set[int]:
    """Ids of the placeholders of captured variables that the graph only reads, and of constants.

    Args:
        graph: FuncGraph.
        trained: ids of the handles of variables that change.
    """
    return {
        id(inside)
        for outside, inside in graph.captures
        if id(outside) not in trained
        and (inside.dtype != tf.resource or all(u.type in READS for u in inside.consumers()))
    }
