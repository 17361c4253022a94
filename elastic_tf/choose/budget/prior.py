"""What a step will take, before one has run: from the operations and bytes of a forward pass.

A contraction (convolution, matrix product) of two tensors has a gradient for each, of as many
operations as itself; the gradient of any other op moves the bytes that the op moved. A gradient is
needed by the tensors that flow into it. So one trace of the forward pass tells what training each
tensor costs, up to a few speeds, and one pass by the clock tells how fast this device is.

It may be off by a factor: of the savings foretold a device delivers more or less. The steps of a
training correct it.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.choose.budget.ledger import finished
from elastic_tf.graph import captured, has_state, members, reached_from
from elastic_tf.memory.ops import inlined, nodes
from elastic_tf.timing.profile import CostItem, TimingProfile, described
from elastic_tf.train import optimizers
from elastic_tf.train.engine.prefix import Forward
from elastic_tf.train.engine.tracing import kept
from elastic_tf.train.optimizers.shampoo import Shampoo, rows_of

# Microseconds on two cores of an x86 server, fitted to whole steps of MobileNet, MobileNetV2,
# ResNet50, VGG16, EfficientNetB0 and ViT-Ti/16 in batches of 16 under eight masks each. Only their
# proportions count. Ratios of the network that was left out of a fit were off by 0.025 in the mean.
_OPERATION = 4.1e-6
_OF_DEPTHWISE = 1.8e-4  # in the gradient of a depthwise kernel
_BYTE = 2.0e-5  # that an op takes or gives
_OP = 24.0  # each op, there and back
_BYTE_OF_WEIGHTS = 5.3e-4  # in an update
_BYTE_OF_MATRIX = 1.2e-3  # more, by Shampoo: 1.0e-3 to 2.2e-3 of four of these networks
UNCERTAINTY = 0.1  # of step times: two thirds of those above were off by less

_CONTRACTIONS = ("Conv", "DepthwiseConv", "MatMul", "BatchMatMul", "Einsum")
_FREE = frozenset(
    "Const ExpandDims Identity IdentityN NoOp Pack Placeholder Range Rank ReadVariableOp Reshape "
    "Shape Squeeze StopGradient StridedSlice".split()
)
_STOP = "StopGradient"
_DRAWS = ("StatelessRandom", "StatelessTruncated")  # Keras 3 moves their seeds on
_PASSES = 3  # timed; the quickest counts, for the others shared the machine


def prior_profile(model: Any, x: Any, frozen: Forward | None = None) -> TimingProfile:
    """The times of training steps as they are foretold; only forward passes run.

    Of a compiled elastic model and the inputs x of one batch, by the method "prior"; `uncertainty`
    tells how far the times may be off. `frozen`: a forward pass that is traced, for such inputs.
    """
    is_normalised = any(isinstance(one, stack.NORMALISATIONS) for one in model._flatten_layers())
    folds = model._elastic.statistics != "batch" or not is_normalised  # else trained ones are not
    if frozen is None or not folds or not frozen.takes(x):
        frozen = Forward(model, x, folds=folds)
    model._ordered_by(frozen.graph, model._elastic.tracing)
    tensors = model.tensors
    forward, backward = _work(frozen.graph, tensors)
    # with every layer frozen, as in a step that trains nothing
    measured = 1e6 * _seconds(model, frozen.run, x)
    scale, whitens = measured / sum(forward.values()), _whitens(model)
    for k, tensor in enumerate(tensors):
        of_byte = _BYTE_OF_WEIGHTS + _BYTE_OF_MATRIX * (whitens and rows_of(tensor) > 0)
        backward[1 << k] += of_byte * tensor.dtype.size * tensor.shape.num_elements()
    return TimingProfile(
        t_forward=measured,
        items=tuple(CostItem(members(bits), scale * t) for bits, t in sorted(backward.items())),
        prefix=tuple(CostItem(members(k), scale * t) for k, t in sorted(forward.items()) if k),
        method="prior",
        note="foretold from operations and bytes",
        repeats=_PASSES,
        uncertainty=UNCERTAINTY,
        **described(model, x),
    )


def first_step_seconds(model: Any, share: float) -> float:
    """Of tracing and optimizing a step that takes this share of a full one, before it runs.

    Over the seconds of tracing a forward pass with Keras 3 five networks took by Shampoo, at 0.1,
    0.4 and 1, 1.1 to 3.8, 2.4 to 4.8 and 5.8 to 10.5; by Adam 2 to 3, 3 to 5 and 6 to 10.
    """
    model.tensors  # noqa: B018  whose order takes such a trace
    least, more = (1.5, 8.0) if _whitens(model) else (2.0, 5.0)
    return (least + more * share) * float(model._elastic.tracing)


class StepCosts:
    """The times by which plans are chosen in one `fit`."""

    def __init__(self, model: Any, profile: TimingProfile | None) -> None:
        self.profile = profile  # None until a first batch is there
        self._model = model

    def foretell(self, batch: Any) -> None:
        """Know the costs without a step, of a batch of `fit`."""
        x, _, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
        rows = self._model._elastic.rows
        self.profile = prior_profile(self._model, x, rows and rows.traced)

    def of_plans(self, epochs: int, *, filling: bool = True) -> TimingProfile:
        """What a plan costs in so many epochs, of forward passes too, where they can be cached.

        With `filling`, computing the activations is a part of the steps that take them.
        """
        rows, profile = self._model._elastic.rows, self.profile
        assert profile is not None
        if rows is None or not rows.can_cache:
            return profile
        fill = float(not rows.keeps(epochs))
        if filling:
            fill = rows.fill_cost(epochs)
        return profile.with_cached_prefix(fill, rows.held(self._model.tensors))


def _whitens(model: Any) -> bool:
    return isinstance(optimizers.unwrapped(model.optimizer), Shampoo)


def _work(graph: Any, tensors: Sequence[tf.Variable]) -> tuple[dict[int, float], dict[int, float]]:
    """Microseconds of forward and of backward work by their tensors, as bits; 0: in every step."""
    works, _ = inlined(graph)
    places = {op.name: 1 << k for op, k in captured(graph, tensors).items()}
    held = {inside.op.name for _, inside in graph.captures}
    given = {tensor.op.name for tensor in graph.inputs} - held
    every = nodes(works)
    flows = reached_from(every, places)
    stopped = {name: node._replace(inputs=()) for name, node in every.items() if node.op == _STOP}
    back = reached_from({**every, **stopped}, places)  # whose gradients come back
    data = reached_from(every, given)  # what depends on the samples
    drawn = [n for n, one in every.items() if has_state(one.op) or one.op.startswith(_DRAWS)]
    varying = reached_from(every, drawn)
    forward, backward = (collections.defaultdict[int, float](float) for _ in range(2))
    for name, work in works.items():
        if name not in data or work.type in _FREE:
            continue
        moved = _BYTE * (work.taken + sum(size for size in work.sizes if size > 0))
        is_depthwise = work.type.startswith("Depthwise")
        is_contraction = work.type.startswith(_CONTRACTIONS)
        operations = 0.0 if is_depthwise else _OPERATION * work.flops * is_contraction
        forward[0 if name in varying else flows.get(name, 0)] += operations + moved + _OP
        for source, _ in work.inputs:
            needs = back.get(source, 0)
            if is_depthwise and source not in data:
                operations = _OF_DEPTHWISE * work.flops
            if needs:
                backward[needs] += operations + moved + _OP
    return dict(forward), backward


def _seconds(model: Any, run: Any, x: Any) -> float:
    """Of a traced forward pass, after a slower first one; what they change is put back."""
    found = []
    with kept(model, [run.graph]):
        for _ in range(1 + _PASSES):
            started = time.perf_counter()
            finished(run(x))
            found.append(time.perf_counter() - started)
    return min(found[1:])
