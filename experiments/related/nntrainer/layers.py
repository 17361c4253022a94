"""One use of a layer: what it takes, gives, keeps, and can compute in place.

A layer is traced alone, forward and backward. What its gradients take of the forward pass, and
which results can stand where an operand stood, is read from the ops of that graph: no layer has to
be known by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf.graph import SHAPES, needed_by, nodes_of, reached_from
from elastic_tf.memory.activations import crossings, source
from elastic_tf.memory.ops import SCRATCH, tensor_bytes

MODIFY, READ_ONLY = "MV", "RV"
# Each number of the result can stand where that of the operand stood, or one row where its row did.
_IN_PLACE = frozenset(
    "Abs Add AddV2 BiasAdd Elu EluGrad Exp ExpandDims FusedBatchNormGradV3 FusedBatchNormV3 "
    "Identity IdentityN LeakyRelu LeakyReluGrad Mul Neg RealDiv Relu Relu6 Relu6Grad ReluGrad "
    "Reshape Rsqrt SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Softmax Softplus SoftplusGrad Sqrt "
    "Square Squeeze StopGradient Sub Tanh TanhGrad".split()
)
# Their gradients take their results alone.
_ACTIVATIONS = frozenset("Elu Relu Relu6 Selu Sigmoid Softmax Tanh".split())


class View(NamedTuple):
    """A tensor may stand where another one stands: changed in place ("MV"), or as it is ("RV")."""

    mode: str
    of: str


@dataclass(frozen=True)
class Layer:
    """One use of a layer.

    Attributes:
        name: of the use.
        inputs: names of the activations that it takes.
        outputs: names of those that it gives.
        weights: all that are its own, name -> bytes.
        gradients: of those that are trained, name -> bytes.
        for_gradients: activations that these gradients take.
        derivatives: inputs whose derivative it computes.
        for_derivatives: activations that this takes.
        kept: what else of the forward pass they take: bytes, and for "gradients", "derivative" or
            both.
        views: where an output can stand, output -> views of inputs, the best first.
        derivative_views: where an input's derivative can, input -> views of outputs' derivatives.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, int] = field(default_factory=dict)
    gradients: Mapping[str, int] = field(default_factory=dict)
    for_gradients: tuple[str, ...] = ()
    derivatives: tuple[str, ...] = ()
    for_derivatives: tuple[str, ...] = ()
    kept: tuple[tuple[int, tuple[str, ...]], ...] = ()
    views: Mapping[str, tuple[View, ...]] = field(default_factory=dict)
    derivative_views: Mapping[str, tuple[View, ...]] = field(default_factory=dict)

    def taking(self, new: Mapping[str, str]) -> Layer:
        """The same on other inputs, old name -> new name."""

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(new.get(name, name) for name in names)

        return replace(
            self,
            inputs=renamed(self.inputs),
            for_gradients=renamed(self.for_gradients),
            derivatives=renamed(self.derivatives),
            for_derivatives=renamed(self.for_derivatives),
            views={
                name: tuple(View(mode, new.get(of, of)) for mode, of in views)
                for name, views in self.views.items()
            },
            derivative_views={new.get(k, k): views for k, views in self.derivative_views.items()},
        )


def size(tensor: Any, layer: str) -> int:
    """Bytes of a tensor of a layer.

    Raises:
        ValueError: they are known only while the model runs.
    """
    found = tensor_bytes(tensor)
    if found is None:
        raise ValueError(
            "The size of each tensor must be known before a step runs. Received: "
            f"'{layer}' with a {tensor.dtype.name} of shape {tensor.shape}. Give inputs their full "
            "shape, and recurrent layers unroll=True."
        )
    return found


def trace(
    name: str,
    call: Callable[[dict[str, tf.Tensor]], Any],
    inputs: Mapping[str, tf.TensorSpec],
    through: Sequence[str],
    weights: Mapping[str, tf.Variable],
    trained: Mapping[str, tf.Variable],
) -> tuple[list[Layer], dict[str, tf.TensorSpec]]:
    """Trace one use of a layer.

    A layer with weights that ends with an activation function is two, as in the paper.

    Args:
        name: of the use.
        call: runs the layer on its inputs by name.
        inputs: what it takes.
        through: inputs whose derivative is needed.
        weights: all that are its own.
        trained: what a gradient is needed for, by the name of the weight; some channels of it
            or itself.

    Returns:
        The layer or both, and the activations that they give, the layer's own outputs first.

    Raises:
        ValueError: the size of a tensor is known only while the model runs.

    Source: Moon et al., NNTrainer, ICSE 2024, Tables 1 and 3.
    """
    for key, spec in inputs.items():
        size(spec, key)
    run = _Run(call, inputs, through, [*trained.values()])
    several = len(run.outputs) > 1
    names = [f"{name}/{k}" if several else name for k in range(len(run.outputs))]
    specs = {key: tf.TensorSpec(y.shape, y.dtype) for key, y in zip(names, run.outputs)}
    for spec in specs.values():
        size(spec, name)

    taken = {"gradients": run.taken(run.gradients), "derivative": run.taken(run.derivatives)}
    known = {source(y).name: key for key, y in zip(names, run.outputs)}
    known.update((x.name, key) for key, x in run.inputs.items())
    kept: Counter[tuple[str, ...]] = Counter()
    for one, tensor in {**taken["gradients"], **taken["derivative"]}.items():
        if one not in known:
            kept[tuple(what for what in taken if one in taken[what])] += size(tensor, name)
    views, derivative_views = {}, {}
    if not several:  # of several results, one could overwrite what another one is a view of
        result = run.outputs[0]
        found = ((key, _view(run.graph, x, result)) for key, x in run.inputs.items())
        views = {name: _best((mode, key) for key, mode in found)}
        derivative_views = {
            key: _best([(_view(run.graph, run.seeds[0], dx), name)])
            for key, dx in zip(through, run.derivatives)
            if isinstance(dx, tf.Tensor)
        }
    layer = Layer(
        name,
        tuple(inputs),
        tuple(names),
        {key: size(weight, name) for key, weight in weights.items()},
        {
            key: sum(size(part, name) for part in _parts(gradient))
            for key, gradient in zip(trained, run.gradients)
            if gradient is not None
        },
        tuple(known[one] for one in taken["gradients"] if one in known),
        tuple(key for key, dx in zip(through, run.derivatives) if dx is not None),
        tuple(known[one] for one in taken["derivative"] if one in known),
        tuple((count, what) for what, count in kept.items()),
        views,
        derivative_views,
    )
    last = source(run.outputs[0])
    if several or not weights or last.op.type not in _ACTIVATIONS:
        return [layer], specs
    return _split(layer), {**specs, f"{name}/linear": specs[name]}


def _split(layer: Layer) -> list[Layer]:
    """The layer without its activation function, and that function as a layer."""
    name, (output,) = layer.name, layer.outputs
    linear = f"{name}/linear"
    passes = bool(layer.gradients or layer.derivatives)

    def others(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in names if one != output)

    first = replace(
        layer,
        outputs=(linear,),
        for_gradients=others(layer.for_gradients),
        for_derivatives=others(layer.for_derivatives),
        views={},
        derivative_views={},
    )
    second = Layer(
        f"{name}/activation",
        (linear,),
        (output,),
        derivatives=(linear,) * passes,
        for_derivatives=(output,) * passes,
        views={output: (View(MODIFY, linear),)},
        derivative_views={linear: (View(MODIFY, output),)},
    )
    return [first, second]


class _Run:
    """The graph of one use of a layer and of its gradients."""

    def __init__(
        self,
        call: Callable[[dict[str, tf.Tensor]], Any],
        inputs: Mapping[str, tf.TensorSpec],
        through: Sequence[str],
        trained: Sequence[tf.Variable],
    ) -> None:
        @tf.function(autograph=False)
        def run(given: dict[str, tf.Tensor], seed: tf.Tensor) -> None:
            self.inputs, self.seed, watched = given, seed, [given[name] for name in through]
            with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
                tape.watch([*watched, *trained])
                self.outputs = [tf.convert_to_tensor(y) for y in tf.nest.flatten(call(given))]
            if trained or watched:
                ends = [y for y in self.outputs if y.dtype.is_floating]
                self.seeds = [tf.broadcast_to(tf.cast(seed, y.dtype), y.shape) for y in ends]
                self.gradients = tape.gradient(ends, trained, self.seeds)
                self.derivatives = tape.gradient(ends, watched, self.seeds)

        self.seeds, self.gradients, self.derivatives = [], [], []
        self.graph = run.get_concrete_function(dict(inputs), tf.TensorSpec(())).graph

    def taken(self, wanted: Sequence[Any]) -> dict[str, tf.Tensor]:
        """Tensors of the forward pass that these gradients take, by name."""
        parts = [part for gradient in wanted for part in _parts(gradient)]
        ops, operands = self.graph.get_operations(), _operands(parts)
        backward = reached_from(nodes_of(ops, SHAPES), [self.seed.op], follow_controls=True)
        both = crossings(ops, list(self.inputs.values()), backward.keys(), parts)
        found = [source(one) for one, op in both if any(one is taken for taken in operands(op))]
        return {t.name: t for t in found if (t.op.type, t.value_index) != SCRATCH}


def _operands(wanted: Sequence[tf.Tensor]) -> Callable[[tf.Operation], Sequence[tf.Tensor]]:
    """Inputs that an op takes for these gradients.

    With stored statistics a normalisation needs its input for gamma alone; TensorFlow's op takes it
    for all three gradients.
    """
    used = {tensor.name for tensor in wanted}

    def operands(op: tf.Operation) -> Sequence[tf.Tensor]:
        if op.type == "FusedBatchNormGradV3" and not op.get_attr("is_training"):
            scale = op.outputs[1]
            if scale.name not in used and not scale.consumers():
                return [tensor for k, tensor in enumerate(op.inputs) if k != 1]
        return list(op.inputs)

    return operands


def _parts(gradient: Any) -> list[tf.Tensor]:
    """The tensors that a gradient consists of: none, one, or those of some rows."""
    if gradient is None:
        return []
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


def _best(found: Any) -> tuple[View, ...]:
    """Views of what has a mode; a view that changes nothing before one that does."""
    return tuple(sorted((View(*one) for one in found if one[0]), reverse=True))


def _view(graph: Any, operand: tf.Tensor, result: tf.Tensor) -> str:
    """How `result` can stand where `operand` stands: a mode, or "" if it cannot."""
    if source(result) is operand:
        return READ_ONLY
    if result.shape.num_elements() != operand.shape.num_elements() or result.dtype != operand.dtype:
        return ""
    nodes = nodes_of(graph.get_operations(), SHAPES)
    between = reached_from(nodes, [operand.op]).keys() & needed_by(nodes, [result.op])
    ops = {op.type for op in between - {operand.op}}
    return MODIFY if ops and ops <= _IN_PLACE else ""
