"""From op times to tensor times: which op runs because of which tensors.

A `trace` is of a step that trains every tensor, a `trace_forward` of one that trains nothing. Sets
of tensors are bits of integers.

Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 5.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from elastic_tf.graph import READS, Node, changing, members, needed_by, reached_from
from elastic_tf.timing.profile import CostItem
from elastic_tf.timing.trace import StepTrace


@dataclass(frozen=True)
class Attribution:
    """What the ops of a step belong to."""

    sets: Mapping[str, int]  # tensors that need the op, as bits, by op outside the forward pass
    forward: Collection[str]  # ops of the forward pass
    folded: Collection[int]  # as bits, the tensors of each normalisation folded when frozen

    def is_folded(self, count: int) -> np.ndarray:
        """True for the tensors of folded normalisations; bool, shape (count,)."""
        own = [k for bits in self.folded for k in members(bits)]
        return np.isin(np.arange(count), own)

    def items(
        self,
        times: Mapping[str, float] | None = None,
        surplus: Mapping[tuple[int, ...], float] | None = None,
    ) -> list[CostItem]:
        """The ops outside the forward pass that take time, gathered by their tensors.

        `times` are microseconds by op; without any, each op counts alike. A `forward_surplus`
        below 0 makes the work of its tensors cheaper.
        """
        times = times or dict.fromkeys(self.sets, 1.0)
        works = ((bits, times.get(name, 0.0)) for name, bits in self.sets.items() if bits)
        return _gathered(works, surplus or {})


def attribute(trace: StepTrace, trace_forward: StepTrace | None = None) -> Attribution:
    """For each op of the backward pass and the update, the tensors whose training needs it.

    An op runs when at least one tensor of its set is trained. Four rules give the sets:

    1. What the loss, the logs or a variable outside training needs is the forward pass; it has no
       set.
    2. Of the rest, what a gradient needs has the set of the tensors whose gradients need it.
    3. The rest is the update. An op there belongs to the tensors whose gradients flow into it or
       to those whose new value needs it, whichever are fewer: of a norm over all gradients, the
       square of one gradient belongs to that tensor, the sum to all.
    4. A normalisation that is folded into a convolution when it is frozen has a backward pass only
       if its own scale or offset is trained. Without `trace_forward` none counts as folded.
    """
    nodes = trace.nodes
    gradient_roots: dict[str, int] = {}
    for k, roots in enumerate(trace.gradients):
        for root in roots:
            gradient_roots[root] = gradient_roots.get(root, 0) | 1 << k
    folded = {} if trace_forward is None else _of_folded(trace, trace_forward)
    backward = {**needed_by(nodes, gradient_roots), **folded}
    writes = _writes(nodes, trace.handles)
    everything = 0
    for bits in (*gradient_roots.values(), *(1 << k for k in writes.values() if k >= 0)):
        everything |= bits
    forward = set(needed_by(nodes, trace.results))
    update = {name: node for name, node in nodes.items() if name not in backward}
    flows_from = reached_from(
        update, _first_users(nodes, gradient_roots, backward), follow_controls=True
    )
    outside = [n for n, owner in writes.items() if owner < 0 and n not in flows_from]
    forward |= set(needed_by(nodes, outside))
    leads_to = needed_by(
        update, {n: 1 << owner for n, owner in writes.items() if owner >= 0}, follow_controls=True
    )

    sets = {}
    for name in nodes:
        if name not in forward:
            candidates = [bits for bits in (flows_from.get(name), leads_to.get(name)) if bits]
            fewest = min(candidates, key=lambda bits: bin(bits).count("1"), default=everything)
            sets[name] = backward.get(name, fewest)
    return Attribution(sets, forward, set(folded.values()))


def forward_surplus(
    trace: StepTrace, trace_forward: StepTrace, work: Attribution
) -> dict[tuple[int, ...], float]:
    """What the forward pass costs more because tensors are trained, by the tensors that cause it.

    A frozen part of the model runs fused: convolution, normalisation and activation as one op.
    Where a gradient needs what lies between, TensorFlow runs them one by one; and a trained batch
    normalisation computes the statistics of the batch.

    Ops are compared by level, the last tensor they depend on; a level that the frozen forward pass
    lacks was fused into the next one it has. The surplus of a level is caused by the tensors whose
    gradients take something from inside it, that of a folded normalisation by its own. It is
    negative where the fused op is the slower one. `work` is the attribution of `trace`.
    """
    taken_by: dict[str, int] = {}
    for name, bits in work.sets.items():
        for source in trace.nodes[name].inputs:
            if trace.nodes[source].op not in READS | {"_Arg"}:  # a variable is no result
                taken_by[source] = taken_by.get(source, 0) | bits

    levels, times, nodes = _levels(trace_forward), trace_forward.times, trace_forward.nodes
    # what weights alone go into, as a kernel scaled to fold a normalisation, is no level
    given = (n for n, one in nodes.items() if one.op == "_Arg" and n not in trace_forward.handles)
    of_data = reached_from(nodes, dict.fromkeys(given, 1))
    present = sorted({level for n, level in levels.items() if n in of_data and times.get(n)})

    def place(level: int) -> int | None:
        return next((other for other in present if other >= level), None)

    surplus, causes = dict.fromkeys(present, 0.0), dict.fromkeys(present, 0)
    for name, level in levels.items():
        if (host := place(level)) is not None:
            surplus[host] -= times.get(name, 0.0)
    for name, level in _levels(trace).items():
        host = place(level)
        if name in work.forward and host is not None:
            surplus[host] += trace.times.get(name, 0.0)
            bits = taken_by.get(name, 0)
            causes[host] |= bits if bits.bit_length() - 1 <= host else 0
    causes.update({bits.bit_length() - 1: bits for bits in work.folded})

    found: dict[tuple[int, ...], float] = collections.defaultdict(float)
    for level in present:
        if causes[level]:
            found[members(causes[level])] += surplus[level]
    return found


def cacheable(trace_forward: StepTrace) -> list[CostItem]:
    """The work of the forward pass that a cached prefix can spare, by the tensors before it.

    Such an op has to run only where a tensor that its result depends on is trained; but for one
    that depends on a random number or on another state, which has to run in every step.
    """
    nodes = trace_forward.nodes
    varying = reached_from(nodes, changing(nodes))
    behind = _tensors_behind(trace_forward).items()
    times = trace_forward.times
    works = ((bits, times.get(n, 0.0)) for n, bits in behind if n not in varying)
    return _gathered(works, {})


def _gathered(
    works: Iterable[tuple[int, float]], surplus: Mapping[tuple[int, ...], float]
) -> list[CostItem]:
    """The times of tensors, as bits, as one item of each; what takes none is left out."""
    totals: dict[tuple[int, ...], float] = collections.defaultdict(float)
    for bits, time in works:
        totals[members(bits)] += time
    for key, time in surplus.items():
        totals[key] += time
    return [CostItem(key, totals[key]) for key in sorted(totals) if totals[key] > 0.0]


def _tensors_behind(trace: StepTrace) -> dict[str, int]:
    """The tensors that each op depends on, as bits; ops that depend on none are left out."""
    roots = {name: 1 << k for name, k in trace.handles.items() if k >= 0}
    return reached_from(trace.nodes, roots)


def _of_folded(trace: StepTrace, trace_forward: StepTrace) -> dict[str, int]:
    """The backward ops of normalisations that the frozen pass folds, with their own tensors."""
    unfolded = 0
    for name, node in trace_forward.nodes.items():
        if "BatchNorm" in node.op or node.op.startswith("_Fused"):
            unfolded |= _tensors_taken(trace_forward, name)
    forward, backward = {}, {}
    for name, node in trace.nodes.items():
        if "BatchNorm" in node.op and "Grad" in node.op:
            backward[name] = node.inputs[1]
        elif "BatchNorm" in node.op:
            forward[node.inputs[0]] = _tensors_taken(trace, name)
    own = {name: forward.get(source, 0) for name, source in backward.items()}
    return {name: bits for name, bits in own.items() if bits and not bits & unfolded}


def _tensors_taken(trace: StepTrace, name: str) -> int:
    """The tensors whose values an op takes as they are, as bits."""
    found = 0
    for source in trace.nodes[name].inputs:
        while trace.nodes[source].op in READS and trace.nodes[source].inputs:
            source = trace.nodes[source].inputs[0]
        k = trace.handles.get(source, -1)
        found |= 1 << k if k >= 0 else 0
    return found


def _levels(trace: StepTrace) -> dict[str, int]:
    """The last tensor that each op depends on; ops that depend on none, or read one, left out."""
    return {
        name: bits.bit_length() - 1
        for name, bits in _tensors_behind(trace).items()
        if trace.nodes[name].op not in READS | {"_Arg"}
    }


def _writes(nodes: Mapping[str, Node], handles: Mapping[str, int]) -> dict[str, int]:
    """Nodes that write a variable, with the tensor's index or -1 for any other variable."""
    return {
        name: handles[source]
        for name, node in nodes.items()
        if node.op not in READS and node.op != "_Retval"
        for source in node.inputs[:1]
        if source in handles
    }


def _first_users(
    nodes: Mapping[str, Node], gradient_roots: Mapping[str, int], backward: Mapping[str, int]
) -> dict[str, int]:
    """Nodes outside the backward pass that take a gradient, with the tensors it belongs to."""
    gradients: dict[tuple[str, int], int] = {}
    for root, bits in gradient_roots.items():
        for source in _through_identities(nodes, root):
            gradients[source] = gradients.get(source, 0) | bits
    users: dict[str, int] = {}
    for name, node in nodes.items():
        if name not in backward:
            for source in zip(node.inputs, node.ports):
                users[name] = users.get(name, 0) | gradients.get(source, 0)
    return {name: bits for name, bits in users.items() if bits}


def _through_identities(nodes: Mapping[str, Node], name: str) -> Iterator[tuple[str, int]]:
    """The outputs that `name` returns: its input, and what that only passes on."""
    while nodes[name].inputs:
        source = (nodes[name].inputs[0], nodes[name].ports[0])
        yield source
        name = source[0]
        if nodes[name].op not in {"Identity", "IdentityN"}:
            return
