"""A traced model, run again by the rules of `rules`, and its functions as files of LiteRT."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.app.export import rules
from elastic_tf.graph import READS, captured, reach, takes, users
from elastic_tf.stack import variables_of
from elastic_tf.train.head.features import head_tensors

_SPEC = tf.TensorSpec


class Network:
    """The forward pass of one kind of batch, to be run in another graph; some ops are refused."""

    def __init__(self, forward: Any, batch: tf.TensorSpec) -> None:
        # which keeps the graph alive
        self._function = tf.function(forward, autograph=False).get_concrete_function(batch)
        graph = self._function.graph
        self._variables = {variable.handle.ref(): variable for variable in graph.variables}
        self._outside = {inside.op: outside for outside, inside in graph.captures}
        self.input = graph.inputs[0]
        self.output = graph.outputs[0]
        self._ops = self._needed(self.output)
        self._from_input = reach([self.input.op], users)
        for op in self._ops:
            on_path = op in self._from_input and op is not self.input.op
            if on_path and (why := rules.refusal(op)):
                raise ValueError(
                    f"The model must have layers that LiteRT can train. Received: the op {op.type} "
                    f"in '{op.name}', {why}. Replace that layer."
                )

    def cut(self, trained: Iterable[tf.Variable]) -> tf.Tensor:
        """The last activations that depend on none of the variables, and that all else goes by.

        The model's input, if there are no others.
        """
        moving = {self.output.op, *reach(captured(self.output.graph, trained), users)}
        moving &= {*self._ops}
        for op in reversed(self._ops):
            is_one = len(op.outputs) == 1 and op.outputs[0].dtype == tf.float32
            if is_one and op in self._from_input - moving:
                around = reach({self.input.op} - {op}, lambda one: {*users(one)} - {op})  # noqa: B023
                if not around & moving:
                    return op.outputs[0]
        return self.input

    def run(
        self, values: dict[Any, tf.Tensor], start: tf.Tensor, x: tf.Tensor, end: tf.Tensor
    ) -> tf.Tensor:
        """What tensor `end` of the model is where `start` is x, in the graph that is being traced.

        `values` are of variables, by their reference; others are read, and added.
        """
        known = {start.ref(): x}
        for op in self._needed(end, stop=start):
            if op is start.op:
                continue
            if op.type == "Placeholder":
                known[op.outputs[0].ref()] = self._outside[op]
            elif op.type in READS:
                handle = known[op.inputs[0].ref()]
                variable = self._variables[handle.ref()]
                if variable.ref() not in values:
                    values[variable.ref()] = variable.read_value()
                known[op.outputs[0].ref()] = values[variable.ref()]
            else:
                made = rules.normalised_convolution(op, known)
                if made is None:
                    rule: Any = rules.RULES.get(op.type, _same)
                    made = rule(op, *(known[tensor.ref()] for tensor in op.inputs))
                outputs = zip(op.outputs, tf.nest.flatten(made))
                known.update({old.ref(): new for old, new in outputs})
        return known[end.ref()]

    def behind(self, tensor: tf.Tensor, start: tf.Tensor | None = None) -> set[Any]:
        """References of the variables that a tensor depends on, not by way of `start`."""
        taken = [self._outside.get(op) for op in self._needed(tensor, stop=start)]
        handles = {one.ref() for one in taken if one is not None}
        return {one.ref() for handle, one in self._variables.items() if handle in handles}

    def _needed(self, end: tf.Tensor, stop: tf.Tensor | None = None) -> list[Any]:
        """The ops that a tensor needs, in the order in which they were traced."""
        last = None if stop is None else stop.op
        found = reach([end.op], lambda op: () if op is last else takes(op))
        return [op for op in self.output.graph.get_operations() if op in found]


def _same(op: tf.Operation, *inputs: tf.Tensor) -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    kinds = [tensor.dtype for tensor in op.outputs]
    return graph.create_op(op.type, inputs, kinds, attrs=dict(op.node_def.attr)).outputs


class Functions:
    """Files of the functions of a model by name, with the weights among their inputs."""

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.contents = model, dict[str, bytes]()
        self._images = _SPEC((size, *model.input_shape[1:]), tf.float32)
        self._network = Network(lambda x: model(x, training=False), self._images)
        self._logits = _logits(model, self._network.output)
        self.classes = int(self._logits.shape[-1])
        self._features: dict[Any, str | None] = {self._network.input.ref(): None}  # names
        self._constants: dict[str, dict[int, list[int]]] = {}

    def write(self, masks: Sequence[np.ndarray]) -> dict[str, Any]:
        """Convert them all, and say what they mean."""
        tensors, network = self.model.tensors, self._network
        self._held = np.flatnonzero(np.any(masks, axis=0)).tolist()
        head = np.flatnonzero(head_tensors(self.model)).tolist()
        kernel, *bias = sorted(head, key=lambda k: tensors[k].shape.rank != 2)
        before = network.cut([tensors[k] for k in head])
        if tensors[kernel].shape != (before.shape[-1], self.classes) or before.shape.rank != 2:
            raise ValueError(
                "The last layer must be a Dense layer on one vector per image. Received: "
                f"{[tensors[k].name for k in (kernel, *bias)]}."
            )
        self._forward("infer", self._logits, "logits")
        at = {"kernel": kernel, "bias": bias[0] if bias else None, "features": self._before(before)}
        plans = []
        for k, mask in enumerate(masks):
            trained = np.flatnonzero(mask).tolist()
            cut = network.cut([tensors[index] for index in trained])
            # preprocessing alone is not worth keeping
            cut = cut if network.behind(cut) else network.input
            self._train(f"train_{k}", trained, cut)
            plans.append({"tensors": trained, "features": self._before(cut)})
        return {"held": self._held, "head": at, "plans": plans, "constants": self._constants}

    def _before(self, end: tf.Tensor) -> str | None:
        """The name of the function of these activations; None of the images."""
        if end.ref() not in self._features:
            name = self._features[end.ref()] = f"features_{len(self._features) - 1}"
            self._forward(name, end, "features")
        return self._features[end.ref()]

    def _forward(self, name: str, end: tf.Tensor, said: str) -> None:
        start = self._network.input

        def body(given: dict[str, tf.Tensor], values: dict[Any, tf.Tensor]) -> Any:
            return {said: self._network.run(values, start, given["x"], end)}

        self._add(name, body, {"x": self._images}, end, start)

    def _train(self, name: str, trained: Sequence[int], cut: tf.Tensor) -> None:
        def body(given: dict[str, tf.Tensor], values: dict[Any, tf.Tensor]) -> Any:
            logits = self._network.run(values, cut, given["x"], self._logits)
            chances = tf.nn.log_softmax(logits)
            said = tf.reduce_sum(tf.one_hot(given["y"], self.classes) * chances, -1)
            loss = -tf.reduce_sum(said * given["weight"]) / tf.reduce_sum(given["weight"])
            tensors = {f"g{k}": self.model.tensors[k].ref() for k in trained}
            wanted = {name: values[tensor] for name, tensor in tensors.items() if tensor in values}
            gradients = zip(wanted, tf.gradients(loss, list(wanted.values())))
            return {"loss": loss, **{name: one for name, one in gradients if one is not None}}

        size = self._images.shape[:1]
        kinds = {"x": _SPEC(cut.shape, tf.float32), "y": _SPEC(size, tf.int32)}
        kinds["weight"] = _SPEC(size, tf.float32)
        self._add(name, body, kinds, self._logits, cut, trained)

    def _add(
        self,
        name: str,
        body: Any,
        kinds: dict[str, tf.TensorSpec],
        end: tf.Tensor,
        start: tf.Tensor,
        trained: Sequence[int] = (),
    ) -> None:
        """Convert a function whose inputs are named, with `w3` for tensor 3.

        LiteRT prepares kernels that are constants once, and runs them twice as fast. Frozen kernels
        are constants, and the runner writes their values of now into the file, where the file has
        each once, in its own order or with the outputs first.
        """
        behind, tensors = self._network.behind(end, start), self.model.tensors
        taken = [k for k in self._held if tensors[k].ref() in behind]
        frozen = {k: tensors[k].numpy() for k in taken if k not in trained}
        fixed = {k: value for k, value in frozen.items() if value.ndim > 1 and value.size >= 64}
        while True:
            function, kept = self._function(body, kinds, taken, fixed)
            if len(kept) == len(fixed):
                content = self._converted(function)
                found = {k: _place(content, value) for k, value in fixed.items()}
                places = {k: place for k, place in found.items() if place}
                if len(places) == len(fixed):
                    self.contents[name], self._constants[name] = content, places
                    return
                kept = set(places)
            fixed = {k: fixed[k] for k in kept}

    def _function(
        self,
        body: Any,
        kinds: dict[str, tf.TensorSpec],
        taken: Sequence[int],
        fixed: Mapping[int, np.ndarray],
    ) -> tuple[Any, set[int]]:
        """What is converted, and which of the constants are kernels that are used once."""
        tensors, constants = self.model.tensors, dict[int, tf.Tensor]()
        own = {f"w{k}": k for k in taken if k not in fixed}
        kinds = kinds | {name: _SPEC(tensors[k].shape, tf.float32) for name, k in own.items()}

        def run(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            given = dict(zip(kinds, inputs))
            constants.update({k: tf.constant(value) for k, value in fixed.items()})
            values = {k: given[name] for name, k in own.items()} | constants
            return body(given, {tensors[k].ref(): one for k, one in values.items()})

        signature = [_SPEC(one.shape, one.dtype, key) for key, one in kinds.items()]
        function = tf.function(run, input_signature=signature, autograph=False)
        function.get_concrete_function()
        kernels = ["Conv2D"], ["DepthwiseConv2dNative"], ["MatMul"]
        return function, {k for k, one in constants.items() if list(_users(one)) in kernels}

    def _converted(self, function: Any) -> bytes:
        module = tf.Module()
        module.held = variables_of(self.model)  # all that is captured must be tracked
        with tempfile.TemporaryDirectory() as folder:
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            tf.saved_model.save(module, folder, {"run": function}, options)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["run"])
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            return converter.convert()


def _logits(model: Any, output: tf.Tensor) -> tf.Tensor:
    """The logits that the loss is of; another loss is a ValueError."""
    loss = tf.keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    is_sparse = isinstance(loss, tf.keras.losses.SparseCategoricalCrossentropy)
    is_function = loss is tf.keras.losses.sparse_categorical_crossentropy
    last = output.op
    while last.type == "Identity":
        last = last.inputs[0].op
    has_softmax = last.type == "Softmax"
    from_logits = is_sparse and loss.get_config()["from_logits"]
    if not (is_sparse or is_function) or from_logits == has_softmax or model.losses:
        raise ValueError(
            "The loss must be SparseCategoricalCrossentropy, of logits with from_logits=True or of "
            f"a softmax, and without regularisers. Received: {arguments.brief(model.loss)} of the "
            f"output of '{output.op.name}'. Compile the model with it."
        )
    return last.inputs[0] if has_softmax else output


def _users(tensor: tf.Tensor) -> Iterator[str]:
    """Kinds of the ops that take a tensor, reshaped at most."""
    for op in tensor.consumers():
        if op.type in ("Identity", "IdentityN", "Reshape"):
            for given, said in zip(op.inputs, op.outputs):
                if given is tensor:
                    yield from _users(said)
        else:
            yield op.type


def _place(content: bytes, value: np.ndarray) -> list[int] | None:
    """Where the file has the values, and whether with their last axis first."""
    orders = [value.tobytes(), np.moveaxis(value, -1, 0).tobytes()]
    found = {content.find(one): first for first, one in enumerate(orders) if one in content}
    ((start, first),) = found.items() if len(found) == 1 else ((-1, 0),)
    return [start, first] if start >= 0 and content.count(orders[first]) == 1 else None
