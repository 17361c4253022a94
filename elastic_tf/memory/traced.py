"""The ops of a training step as TensorFlow runs them: what each takes, gives, and waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.costs import op_flops
from elastic_tf.costs.activations import SCRATCH, tensor_bytes
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.snapshot import SHAPES, host_generators_kept
from elastic_tf.plan import Plan
from elastic_tf.timing.dataflow import Node, needed_by, reached_from
from elastic_tf.timing.trace import StepFunction

Key = tuple[str, int]  # an op and the number of its output

FOLDED = "FusedBatchNormV3 of a layer that is left out"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_SAME = frozenset("EnsureShape Identity PreventGradient Reshape".split())
_HELD = frozenset({"Placeholder", "ReadVariableOp"})  # there anyway
_LOOPS = frozenset({"While", "StatelessWhile"})
# What a core does in a microsecond; only ratios matter, and these little.
_FLOPS, _BYTES, _START = 20e3, 8e3, 2.0


@dataclass
class Work:
    """One op.

    Attributes:
        name: unique in the step.
        type: of the op.
        inputs: what it takes.
        sizes: bytes of what it gives.
        controls: ops that it waits for.
        microseconds: a guess.
        written: bytes of the variable that it writes.
        taken: bytes of what it takes.
    """

    name: str
    type: str
    inputs: tuple[Key, ...]
    sizes: tuple[int, ...] = ()
    controls: tuple[str, ...] = ()
    microseconds: float = 0.0
    written: int = 0
    taken: int = 0


class Ends(NamedTuple):
    """What a step is run for."""

    results: tuple[Key, ...]  # the loss and the logs
    gradients: tuple[tuple[Key, ...], ...]  # of each of the N tensors
    effects: dict[str, int]  # ops that change something -> set of tensors that they belong to


@dataclass
class TracedStep:
    """The training step of a plan.

    Attributes:
        plan: how each tensor is trained.
        works: ops by name, in the order in which they were made; without those that only constants
            flow into, which are computed once.
        ends: what they are run for.
        handles: those of the tensors -> their index.
    """

    plan: Plan
    works: dict[str, Work]
    ends: Ends
    handles: dict[Key, int] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ElasticMixin, data: Any, plan: Plan) -> TracedStep:
        """Trace the step; nothing runs.

        Args:
            model: compiled elastic model.
            data: one batch.
            plan: how each tensor is trained.

        Raises:
            ValueError: the size of a tensor is known only while the step runs.
        """
        with host_generators_kept(model):
            graph = StepFunction(model, plan, jit_compile=False).graph(data)
        loss, logs, gradients = graph.structured_outputs
        inlined = _Inlined()
        outputs = dict(zip((t.name for t in graph.outputs), inlined.add(graph, "", ())))

        def keys(tensors: Any) -> tuple[Key, ...]:
            flat = tf.nest.flatten(tensors, expand_composites=True)
            return tuple(outputs[t.name] for t in flat if t is not None)

        def made(key: Key) -> Key:  # before it was passed on
            while inlined.works[key[0]].type in _SAME:
                key = inlined.works[key[0]].inputs[0]
            return key

        found = iter(gradients)
        roots = tuple(tuple(map(made, keys(next(found)))) if on else () for on in plan.mask)
        # what is returned waits for all effects, which are ends by themselves
        results = tuple(map(made, keys((loss, logs))))
        effects = dict.fromkeys(inlined.joined(op.name for op in graph.control_outputs), 0)
        index = {id(tensor.handle): k for k, tensor in enumerate(model.tensors)}
        handles = {
            (inner.op.name, 0): index[id(outer)]
            for outer, inner in graph.captures
            if id(outer) in index
        }
        step = cls(plan, inlined.works, Ends(results, roots, effects), handles)
        step._without_constants()
        return step

    @property
    def nodes(self) -> dict[str, Node]:
        """The ops as a graph."""
        return {
            work.name: Node(work.type, tuple(name for name, _ in work.inputs), (), work.controls)
            for work in self.works.values()
        }

    @property
    def is_separable(self) -> bool:
        """Whether each effect belongs to one tensor: no gradients are clipped together."""
        return all(bits & (bits - 1) == 0 for bits in self.ends.effects.values())

    def restricted(self, mask: np.ndarray) -> TracedStep:
        """The part that is left if only these of its tensors are trained; bool, shape (N,)."""
        kept = sum(1 << int(k) for k in np.flatnonzero(mask))
        every = self.ends.effects.items()
        effects = {name: bits for name, bits in every if not bits or bits & kept}
        roots = [*effects, *(name for name, _ in self.ends.results)]
        needed = needed_by(self.nodes, dict.fromkeys(roots, 1), follow_controls=True)
        works = {
            name: replace(work, type=FOLDED) if self._is_left_out(work, mask) else work
            for name, work in self.works.items()
            if name in needed
        }
        _fold(works)
        plan = Plan.from_mask(np.asarray(mask, bool) & self.plan.mask)
        return TracedStep(plan, works, self.ends._replace(effects=effects), self.handles)

    def _is_left_out(self, work: Work, mask: np.ndarray) -> bool:
        """Whether it is a normalisation of which nothing is trained: it takes stored statistics."""
        if work.type != "FusedBatchNormV3":
            return False
        reads = (self.works[name] for name, _ in work.inputs[1:3] if name in self.works)
        own = [
            self.handles[read.inputs[0]]
            for read in reads
            if read.inputs[:1] and read.inputs[0] in self.handles
        ]
        return bool(own) and not mask[own].any()

    def owners(self) -> dict[str, int]:
        """Ops that run only for gradients or updates -> set of tensors that need them."""
        nodes = self.nodes
        needed = needed_by(nodes, self.roots)
        forward = needed_by(nodes, dict.fromkeys((name for name, _ in self.ends.results), 1))
        return {name: x for name, x in needed.items() if name in nodes and name not in forward}

    @property
    def roots(self) -> dict[str, int]:
        """Ops that give gradients -> set of their tensors."""
        roots: Counter[str] = Counter()
        for k, keys in enumerate(self.ends.gradients):
            for name in {name for name, _ in keys}:
                roots[name] |= 1 << k
        return dict(roots)

    def kept(self) -> dict[Key, int]:
        """What gradients take of the forward pass -> set of the tensors that need it."""
        owners, found = self.owners(), Counter[Key]()
        for name, bits in owners.items():
            for key in self.works[name].inputs:
                while key[0] in self.works and self.works[key[0]].type in _SAME:
                    key = self.works[key[0]].inputs[0]
                made = self.works.get(key[0])
                if made is not None and key[0] not in owners and made.type not in _HELD:
                    found[key] |= bits
        return dict(found)

    def _without_constants(self) -> None:
        """Leave out what is computed once or never, and tell what belongs to which tensor."""
        sources = [
            name
            for name, work in self.works.items()
            if work.type in ("Placeholder", "ReadVariableOp") or work.written < 0
        ]
        varying = reached_from(self.nodes, dict.fromkeys(sources, 1))
        names = [*self.ends.effects, *(name for name, _ in self.ends.results)]
        needed = needed_by(self.nodes, dict.fromkeys(names, 1), follow_controls=True)
        stays = needed.keys() & (varying.keys() | self.ends.effects.keys())
        forward = needed_by(self.nodes, dict.fromkeys((name for name, _ in self.ends.results), 1))
        of: Counter[Key] = Counter()  # gradient -> its tensors; indices of rows are of all
        for k, keys in enumerate(self.ends.gradients):
            for key in {key for key in keys if key[0] not in forward}:
                of[key] += 1 << k
        takers: Counter[str] = Counter()
        for name, work in self.works.items():
            for key in of.keys() & set(work.inputs):
                takers[name] |= of[key]
        belongs = reached_from(self.nodes, takers)
        effects = {}
        for name in self.ends.effects:
            work = self.works[name]
            if name in stays and work.type != "ReadVariableOp":
                own = self.handles.get(work.inputs[0]) if work.inputs else None
                effects[name] = belongs.get(name, 0) | (0 if own is None else 1 << own)
        self.works = {
            name: work
            for name, work in self.works.items()
            if name in stays or (name in needed and work.type == "NoOp")
        }
        self.ends = self.ends._replace(effects=effects)
        for work in self.works.values():
            if min(work.sizes, default=0) < 0 or work.type in _LOOPS:
                raise ValueError(
                    "The size of each tensor must be known before a step runs. Received: "
                    f"'{work.name}' of type {work.type}. Give inputs their full shape, "
                    "and recurrent layers unroll=True."
                )


def _fold(works: dict[str, Work]) -> None:
    """Fold normalisations into the convolutions before them, as `engine.modes.folding` does.

    TensorFlow scales the kernels as soon as the variables are read, all of them.
    """
    for work in [one for one in works.values() if one.type == FOLDED]:
        before = works.get(work.inputs[0][0])
        if before is not None and before.type == "BiasAdd":
            before = works.get(before.inputs[0][0])
        size = 0
        if before is not None and before.type in ("Conv2D", "DepthwiseConv2dNative"):
            kernel, name = before.inputs[1], f"{work.name}/kernel"
            size = works[kernel[0]].sizes[kernel[1]]
        if before is None or not 0 < size <= before.sizes[0]:
            works[work.name] = replace(work, type="FusedBatchNormV3")
            continue
        cost = _START + 2 * size / _BYTES
        works[name] = Work(name, "Scaled", (kernel,), (size,), (), cost, 0, size)
        works[before.name] = replace(before, inputs=(before.inputs[0], (name, 0)))


class _Inlined:
    """The ops of a FuncGraph and of the functions that it calls."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}

    def joined(self, names: Iterable[str]) -> set[str]:
        """These ops, and in the place of those that only wait what they wait for."""
        seen, left = set[str](), [*names]
        while left:
            work = self.works[left.pop()]
            if work.name not in seen:
                seen.add(work.name)
                left += work.controls if work.type == "NoOp" else ()
        return {name for name in seen if self.works[name].type != "NoOp"}

    def add(self, graph: Any, prefix: str, given: Sequence[Key]) -> list[Key]:
        """Add the ops of a graph; returns what its outputs are."""
        same = {tensor.name: key for tensor, key in zip(graph.inputs, given)}

        def source(tensor: tf.Tensor) -> Key:
            return same.get(tensor.name, (prefix + tensor.op.name, tensor.value_index))

        for op in graph.get_operations():
            if op.outputs and op.outputs[0].name in same:
                continue  # an argument
            name, inputs = prefix + op.name, tuple(source(tensor) for tensor in op.inputs)
            controls = tuple(prefix + other.name for other in op.control_inputs)
            names = (tensor.name for tensor in op.outputs)
            if op.type == "IdentityN":  # TensorFlow splits it
                same.update(zip(names, inputs))
                self.works[name] = Work(name, "NoOp", (), (), controls)
            elif op.type in _CALLS:
                body = graph._get_function(op.get_attr("f").name).graph
                same.update(zip(names, self.add(body, f"{name}/", inputs)))
                lasting = tuple(f"{name}/{other.name}" for other in body.control_outputs)
                self.works[name] = Work(name, "NoOp", (), (), controls + lasting)
            else:
                self.works[name] = _work(op, name, inputs, controls)
        return [source(tensor) for tensor in graph.outputs]


def _work(op: Any, name: str, inputs: tuple[Key, ...], controls: tuple[str, ...]) -> Work:
    if op.type in SHAPES:
        return Work(name, op.type, (), tuple(4 * max(t.shape.rank or 1, 1) for t in op.outputs))
    sizes = tuple(_size(tensor) for tensor in op.outputs)
    if op.type == "SplitV" and min(sizes) < 0:  # its cuts move, what the parts add up to does not
        whole, unknown = _size(op.inputs[0]), sizes.count(-1)
        rest = whole - sum(size for size in sizes if size > 0)
        sizes = tuple(rest // unknown if size < 0 <= whole else size for size in sizes)
    given = [tensor for tensor in op.inputs if tensor.dtype != tf.resource]
    taken = sum(_size(tensor) for tensor in given)
    is_handle = bool(op.inputs) and op.inputs[0].dtype == tf.resource
    written = 0
    if op.op_def.is_stateful and not is_handle and op.type != "Placeholder":
        written = -1  # draws random numbers
    elif is_handle and not op.outputs and given:
        written = max(_size(tensor) for tensor in given)
    held = len(op.inputs) - len(given)  # variables that are read and written
    flops = op_flops.count(op) or 0
    moved = taken + sum(sizes) + 2 * held * max(written, 0)
    cost = 0.0 if op.type == "ReadVariableOp" else _START + flops / _FLOPS + moved / _BYTES
    return Work(name, op.type, inputs, sizes, controls, cost, written, taken)


def _size(tensor: tf.Tensor) -> int:
    """Bytes; -1 where only a run tells."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    if (tensor.op.type, tensor.value_index) == SCRATCH:
        return 0
    found = tensor_bytes(tensor)
    return -1 if found is None else found
