"""What a step will take, before one has run: from the operations and bytes of a forward pass.

A contraction (convolution, matrix product) of two tensors has a gradient for each, of as many
operations as itself; the gradient of any other op moves the bytes that the op moved. A gradient is
needed by the tensors that flow into it. So one trace of the forward pass tells what training each
tensor costs, up to a few speeds, and one pass by the clock tells how fast this device is.

It may be off by a factor: of the savings foretold a device delivers more or less. The factor that
was seen last is kept in the user's cache directory, in a small file for each device, software,
model, batch and optimizer. ELASTIC_TF_CACHE names another directory; empty, nothing is kept.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.choose.budget.ledger import finished
from elastic_tf.files import now, to_json, write_json
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

_PLACE = "ELASTIC_TF_CACHE"
_MOST = 10.0  # a factor beyond is no measurement
_SAID = (
    "A training on this device delivered {0:.0%} of the savings foretold ({1}): counted on again."
)


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


def recalled(profile: TimingProfile) -> tuple[TimingProfile, str]:
    """A prior, corrected by what was seen last, and a line that says so; else an empty one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # as if there were none
        file = _file(profile)
        if file is not None:
            found = json.loads(file.read_text(encoding="utf-8"))
            delivered = float(found["delivered"])
            if 1.0 / _MOST < delivered < _MOST:
                return corrected(profile, delivered), _SAID.format(delivered, found["created"])
    return profile, ""


def corrected(profile: TimingProfile, delivered: float) -> TimingProfile:
    """The profile of a device that delivers this part of its savings; a full step takes as long."""
    spared = math.fsum(item.time for item in profile.items)
    delivered = min(delivered, profile.t_full / spared) if spared else delivered
    items, prefix = (
        tuple(replace(item, time=delivered * item.time) for item in part)
        for part in (profile.items, profile.prefix)
    )
    forward = max(profile.t_full - math.fsum(item.time for item in items), 0.0)
    if math.fsum(item.time for item in prefix) > forward:
        prefix = profile.prefix
    return replace(profile, items=items, prefix=prefix, t_forward=forward)


def remember(profile: TimingProfile, delivered: float) -> None:
    """Keep what part of this prior's savings was delivered; where that cannot be, nothing is."""
    with contextlib.suppress(OSError):
        file = _file(profile)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"delivered": delivered, "created": now()})


class StepCosts:
    """The times by which plans are chosen in one `fit`."""

    def __init__(self, model: Any, profile: TimingProfile | None) -> None:
        self.profile = profile  # None until a first batch is there
        self._prior: TimingProfile | None = None
        self._model = model

    def foretell(self, batch: Any) -> str:
        """Know the costs without a step, of a batch of `fit`; a line says what is counted on."""
        x, _, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
        rows = self._model._elastic.rows
        self._prior = prior_profile(self._model, x, rows and rows.traced)
        self.profile, said = recalled(self._prior)
        return said

    def remember(self, delivered: float) -> None:
        """Keep for the next `fit` what part of the foretold savings was delivered."""
        if self._prior is not None and self.profile is not None:
            before, after = (one.t_full - one.t_forward for one in (self._prior, self.profile))
            remember(self._prior, delivered * after / before)

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


def _file(profile: TimingProfile) -> Path | None:
    """Where it is kept."""
    place = os.environ.get(_PLACE, platformdirs.user_cache_dir("elastic_tf"))
    if not place:
        return None
    names = ("tensors", "input_shape", "batch_size", "optimizer", "device")
    known = json.dumps(to_json({name: getattr(profile, name) for name in names}), sort_keys=True)
    return Path(place) / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.json"


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
