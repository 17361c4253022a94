"""A training step as TensorFlow runs it: its ops, and what they are run for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from elastic_tf.graph import captured, needed_by, reach, reached_from
from elastic_tf.memory import executor
from elastic_tf.memory.ops import Key, Work, inlined, microseconds, nodes
from elastic_tf.plan import Plan
from elastic_tf.timing.step import StepFunction
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import host_generators_kept

_SAME = frozenset("EnsureShape Identity PreventGradient Reshape".split())
_HELD = frozenset({"Placeholder", "ReadVariableOp"})  # there anyway
_LOOPS = frozenset({"While", "StatelessWhile"})


@dataclass(frozen=True)
class TracedStep:
    """The ops of a training step."""

    #: By name, in the order in which they were made; without those that only constants flow into,
    #: which are computed once.
    works: dict[str, Work]
    results: tuple[Key, ...]  #: the loss and the logs
    gradients: tuple[tuple[Key, ...], ...] = ()  #: of each of the N tensors
    #: Ops that change something -> set of tensors that they belong to.
    effects: Mapping[str, int] = field(default_factory=dict)
    handles: Mapping[Key, int] = field(default_factory=dict)  #: those of the tensors -> their index

    @classmethod
    def of(cls, model: ElasticMixin, data: Any, plan: Plan) -> TracedStep:
        """Trace the step on a batch, not run; a ValueError where it alone tells a size."""
        run = StepFunction(model, plan, jit_compile=False)
        with host_generators_kept(model):
            graph = run.graph(data)
        works, given = inlined(graph)
        results, gradients = run.ends(data, [_made(works, key) for key in given])
        # what is returned waits for all effects, which are ends by themselves
        lasting = reach(
            (op.name for op in graph.control_outputs),
            lambda name: works[name].controls if works[name].type == "NoOp" else (),
        )
        lasting = {name for name in lasting if works[name].type != "NoOp"}
        handles = {(op.name, 0): k for op, k in captured(graph, model.tensors).items()}
        step = cls(works, results, gradients, dict.fromkeys(lasting, 0), handles)
        return step._without_constants()

    def run(self) -> executor.Run:
        """Run it in thought."""
        return executor.run(self.works, self.results)

    @property
    def is_separable(self) -> bool:
        """Whether each effect belongs to one tensor: no gradients are clipped together."""
        return all(bits & (bits - 1) == 0 for bits in self.effects.values())

    def restricted(self, mask: np.ndarray) -> TracedStep:
        """The part that is left if only these of its tensors are trained; bool, shape (N,)."""
        kept = sum(1 << int(k) for k in np.flatnonzero(mask))
        effects = {name: bits for name, bits in self.effects.items() if not bits or bits & kept}
        roots = [*effects, *(name for name, _ in self.results)]
        needed = needed_by(nodes(self.works), roots, follow_controls=True)
        works = {name: work for name, work in self.works.items() if name in needed}
        for work in [*works.values()]:
            if self._is_left_out(work, mask):
                _fold(works, work)
        return replace(self, works=works, effects=effects)

    def _is_left_out(self, work: Work, mask: np.ndarray) -> bool:
        """Whether it is a normalisation of which nothing is trained: it takes stored statistics."""
        if work.type != "FusedBatchNormV3":
            return False
        reads = [self.works[name] for name, _ in work.inputs[1:3] if name in self.works]
        taken = {key for read in reads for key in read.inputs[:1]}
        own = [self.handles[key] for key in taken & self.handles.keys()]
        return bool(own) and not mask[own].any()

    @cached_property
    def owners(self) -> dict[str, int]:
        """Ops that run only for gradients or updates -> set of tensors that need them."""
        graph = nodes(self.works)
        needed = needed_by(graph, self.roots)
        forward = needed_by(graph, (name for name, _ in self.results))
        return {name: x for name, x in needed.items() if name in graph and name not in forward}

    @property
    def roots(self) -> dict[str, int]:
        """Ops that give gradients -> set of their tensors."""
        roots: Counter[str] = Counter()
        for k, keys in enumerate(self.gradients):
            for name in {name for name, _ in keys}:
                roots[name] |= 1 << k
        return dict(roots)

    def kept(self) -> dict[Key, int]:
        """What gradients take of the forward pass -> set of the tensors that need it."""
        found: Counter[Key] = Counter()
        for name, bits in self.owners.items():
            for key in self.works[name].inputs:
                key = _made(self.works, key)
                made = self.works.get(key[0])
                if made is not None and key[0] not in self.owners and made.type not in _HELD:
                    found[key] |= bits
        return dict(found)

    def _without_constants(self) -> TracedStep:
        """Leave out what is computed once or never, and tell what belongs to which tensor."""
        found = self.works.items()
        sources = [name for name, work in found if work.type in _HELD or work.written < 0]
        graph, results = nodes(self.works), [name for name, _ in self.results]
        varying = reached_from(graph, sources)
        needed = needed_by(graph, [*self.effects, *results], follow_controls=True)
        stays = needed.keys() & (varying.keys() | self.effects.keys())
        forward = needed_by(graph, results)
        of: Counter[Key] = Counter()  # gradient -> its tensors; indices of rows are of all
        for k, keys in enumerate(self.gradients):
            for key in {key for key in keys if key[0] not in forward}:
                of[key] += 1 << k
        takers: Counter[str] = Counter()
        for name, work in self.works.items():
            for key in of.keys() & set(work.inputs):
                takers[name] |= of[key]
        belongs = reached_from(graph, takers)
        effects = {}
        for name in self.effects:
            work = self.works[name]
            if name in stays and work.type != "ReadVariableOp":
                own = self.handles.get(work.inputs[0]) if work.inputs else None
                effects[name] = belongs.get(name, 0) | (0 if own is None else 1 << own)
        works = {
            name: work
            for name, work in self.works.items()
            if name in stays or (name in needed and work.type == "NoOp")
        }
        for work in works.values():
            if min(work.sizes, default=0) < 0 or work.type in _LOOPS:
                raise ValueError(
                    "The size of each tensor must be known before a step runs. Received: "
                    f"'{work.name}' of type {work.type}. Give inputs their full shape, "
                    "and recurrent layers unroll=True."
                )
        return replace(self, works=works, effects=effects)


def _made(works: Mapping[str, Work], key: Key) -> Key:
    """What a tensor was before it was passed on."""
    while key[0] in works and works[key[0]].type in _SAME:
        key = works[key[0]].inputs[0]
    return key


def _fold(works: dict[str, Work], work: Work) -> None:
    """Fold a normalisation, as `engine.freezing`; its kernel is scaled once it is read."""
    before = works.get(work.inputs[0][0])
    if before is not None and before.type == "BiasAdd":
        before = works.get(before.inputs[0][0])
    if before is None or before.type not in ("Conv2D", "DepthwiseConv2dNative"):
        return
    kernel, name = before.inputs[1], f"{work.name}/kernel"
    size = works[kernel[0]].sizes[kernel[1]]
    if 0 < size <= before.sizes[0]:
        works[work.name] = replace(work, type=executor.FOLDED)
        scaling = microseconds(0, 2 * size)
        works[name] = Work(name, "Scaled", (kernel,), (size,), (), scaling, 0, size)
        works[before.name] = replace(before, inputs=(before.inputs[0], (name, 0)))
