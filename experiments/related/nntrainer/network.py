"""The uses of layers of a functional model, in the order of the forward pass."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf.plan import Plan
from elastic_tf.stack import graph_ends, never_differentiated
from elastic_tf.stack import weights as weights_of
from elastic_tf.train.engine import freezing, modes
from elastic_tf.train.engine.modes import one_op
from elastic_tf.train.engine.snapshot import host_generators_kept
from related import graph
from related.nntrainer.layers import MODIFY, READ_ONLY, Layer, View, size, trace


class Network(NamedTuple):
    """Uses of layers and the activations between them."""

    layers: list[Layer]
    activations: dict[str, int]  # name -> bytes
    inputs: list[str]  # activations that come from outside
    outputs: list[str]  # those that the loss takes
    passing: set[str]  # those that depend on a trained tensor


def read(
    model: tf.keras.Model, batch_size: int, tensors: Sequence[tf.Variable], plan: Plan
) -> Network:
    """The layers of a model as they run in a training step under a plan.

    Models inside the model are read too. An activation that several layers take, and whose
    derivative is needed, is followed by a layer that gives each of them a view of it and sums
    their derivatives.

    Args:
        model: a functional or sequential Keras model.
        batch_size: samples in a step.
        tensors: the N trainable variables that `plan` is for.
        plan: how each is trained.

    Raises:
        ValueError: the size of a tensor is known only while the model runs.

    Source: Moon et al., NNTrainer, ICSE 2024, Table 1 (Multi-Out).
    """
    trained = [tensor for tensor, on in zip(tensors, plan.mask) if on]
    reader = _Reader(model, trained, modes.watched(model, tensors, plan, trained))
    names = {}
    for tensor in model.inputs:
        name = names[str(id(tensor))] = reader.new_name(tensor.name.partition(":")[0])
        reader.specs[name] = tf.TensorSpec([batch_size, *tensor.shape[1:]], tensor.dtype)
    inputs = list(names.values())
    with (
        host_generators_kept(model),
        never_differentiated(),
        freezing.frozen(freezing.left_out(model, trained)),
        freezing.as_compiled(model),
        modes.installed(model, tensors, plan),
        one_op.in_one_op(model),
    ):
        reader.walk(model, names, training=True)
    outputs = [names[str(id(tensor))] for tensor in model.outputs]
    activations = {name: size(spec, name) for name, spec in reader.specs.items()}
    network = Network(reader.layers, activations, inputs, [*dict.fromkeys(outputs)], reader.passing)
    return _with_sums(network)


class _Reader:
    """What was read so far."""

    def __init__(
        self,
        model: tf.keras.Model,
        trained: Sequence[tf.Variable],
        watched: Sequence[tf.Variable],
    ) -> None:
        self._model = model
        self.layers: list[Layer] = []
        self.specs: dict[str, tf.TensorSpec] = {}
        self.passing: set[str] = set()  # activations that depend on a trained tensor
        self._watched = {id(variable): one for variable, one in zip(trained, watched)}
        self._weights: dict[int, str] = {}
        self._uses: Counter[str] = Counter()

    def new_name(self, name: str) -> str:
        """`name`, or with a number where something else has it."""
        self._uses[name] += 1
        return name if self._uses[name] == 1 else self.new_name(f"{name}:{self._uses[name]}")

    def walk(self, model: tf.keras.Model, names: dict[str, str], *, training: bool) -> None:
        """Read the layers of a model; `names` has its tensors by Keras's ids, and gets more."""
        for node in graph.nodes(model):
            if node.is_input:
                continue
            layer, mode = node.layer, training if node.training is None else node.training
            if isinstance(layer, tf.keras.Model) and graph_ends(layer) is not None:
                taken = (names[str(id(tensor))] for tensor in node.inputs)
                inner = dict(zip((str(id(tensor)) for tensor in layer.inputs), taken))
                self.walk(layer, inner, training=mode)
                outputs = [inner[str(id(tensor))] for tensor in layer.outputs]
            else:
                outputs = self._use(layer, node, names, mode)
            names.update(zip((str(id(tensor)) for tensor in node.outputs), outputs))

    def _use(self, layer: Any, node: Any, names: dict[str, str], training: bool) -> list[str]:
        """Read one use of a layer; returns the names of its outputs."""

        def call(given: dict[str, tf.Tensor]) -> Any:
            args, kwargs = tf.nest.map_structure(
                lambda one: given[names[str(id(one))]] if str(id(one)) in names else one,
                (node.args, node.kwargs),
            )
            if "training" in inspect.signature(type(layer).call).parameters:
                kwargs["training"] = training
            return layer(*args, **kwargs)

        inputs = dict.fromkeys(names[str(id(tensor))] for tensor in node.inputs)
        own = weights_of(layer) if hasattr(layer, "weights") else ()  # none of an operator
        weights = {self._weight(weight): weight for weight in own}
        trained = {
            name: self._watched[id(weight)]
            for name, weight in weights.items()
            if id(weight) in self._watched
        }
        layers, specs = trace(
            self.new_name(layer.name),
            call,
            {name: self.specs[name] for name in inputs},
            [name for name in inputs if name in self.passing],
            weights,
            trained,
        )
        if layers[0].gradients or layers[0].derivatives:
            self.passing.update(name for name, spec in specs.items() if spec.dtype.is_floating)
        self.layers += layers
        self.specs.update(specs)
        return list(layers[-1].outputs)

    def _weight(self, variable: tf.Variable) -> str:
        if id(variable) not in self._weights:
            # Keras 3 puts the name of a sequential model before it
            name = variable.name.partition(":")[0].removeprefix(f"{self._model.name}/")
            self._weights[id(variable)] = self.new_name(name)
        return self._weights[id(variable)]


def _with_sums(network: Network) -> Network:
    """The network with a layer behind each activation whose derivative is a sum."""
    takers = Counter(name for layer in network.layers for name in layer.inputs)
    takers.update(network.outputs)
    layers, activations, passing = [], dict(network.activations), set(network.passing)
    waiting: dict[str, list[str]] = {}  # views that nobody has taken yet
    for layer in network.layers:
        layers.append(layer.taking({x: waiting[x].pop() for x in layer.inputs if x in waiting}))
        for x in layer.outputs:
            if x in passing and takers[x] > 1:
                views = waiting[x] = [f"{x}@{k}" for k in range(takers[x], 0, -1)]
                activations.update(dict.fromkeys(views, activations[x]))
                passing.update(views)
                layers.append(
                    Layer(
                        f"{x}/sum",
                        (x,),
                        tuple(views),
                        derivatives=(x,),
                        views={view: (View(READ_ONLY, x),) for view in views},
                        derivative_views={x: tuple(View(MODIFY, view) for view in views)},
                    )
                )
    outputs = [waiting[x].pop() if x in waiting else x for x in network.outputs]
    return Network(layers, activations, network.inputs, outputs, passing)
