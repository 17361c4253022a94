"""The seam to layers, models and the step that trains them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.stack.tensorflow import (
    IS_KERAS2,
    KERAS,
    KERAS_VERSION,
    convolves_groups,
    traced_once,
)

if not IS_KERAS2:
    pass

_HOME = f"{KERAS}.src.{'engine' if IS_KERAS2 else 'models'}.functional"
_Functional: Any = import_module(_HOME).Functional
_SPEC = "_elastic_input_spec"  # attribute of a model of Keras 3


@tf.keras.utils.register_keras_serializable("elastic_tf")
class BatchNormalization(tf.keras.layers.BatchNormalization):
    """One that uses stored statistics in training; files of weights have the name of its class.

    Keras 3 overrides the `training=False` of a call in a graph: `fit` passes its own everywhere.
    """

    def __call__(self, inputs: Any, training: Any = None, **options: Any) -> Any:
        """Call it as in inference."""
        del training
        return super().__call__(inputs, training=False, **options)


_LEAST_EPSILON = 1.001e-5  # that cuDNN takes
#: Batch normalisations that compute as Keras does, by class.
PLAIN_NORMALISATIONS: tuple[type, ...] = (tf.keras.layers.BatchNormalization, BatchNormalization)
#: Batch normalisations, and what is derived from them.
NORMALISATIONS = PLAIN_NORMALISATIONS
if IS_KERAS2:
    NORMALISATIONS = (*NORMALISATIONS, tf.keras.layers.experimental.SyncBatchNormalization)


def normalises_last(layer: Any) -> bool:
    """Whether a batch normalisation normalises the last of four axes, in the usual way."""
    if IS_KERAS2:
        return bool(layer.fused) and list(layer.axis) == [3]
    is_last = layer.axis in (3, -1) and layer.input_spec.ndim == 4
    return is_last and not layer.renorm and layer.variable_dtype == "float32"


def kernel(layer: Any) -> Any:
    """Keras's variable of the kernel of a Dense, Conv2D or DepthwiseConv2D.

    None where the layer of Keras 3 multiplies by something else: with LoRA, or quantised.
    """
    if IS_KERAS2:
        is_depthwise = isinstance(layer, tf.keras.layers.DepthwiseConv2D)
        return layer.depthwise_kernel if is_depthwise else layer.kernel
    is_other = getattr(layer, "lora_enabled", False) or layer.quantization_mode
    return None if is_other else layer.kernel


def in_one_op(layer: Any) -> dict[str, Any]:
    """Attributes by which a layer runs in one op, in the place of several or of one under XLA."""
    if type(layer) in PLAIN_NORMALISATIONS and not IS_KERAS2:
        return {"call": functools.partial(_normalised, layer)}
    is_convolution = type(layer) is tf.keras.layers.Conv2D
    if is_convolution and layer.groups > 1 and convolves_groups(layer.compute_dtype):
        if IS_KERAS2:
            return {"_jit_compiled_convolution_op": layer.convolution_op}
        return {"convolution_op": functools.partial(_convolved, layer)}
    return {}


def _normalised(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """What a plain batch normalisation of Keras 3 makes of its inputs, its statistics moved.

    The last of four axes is normalised in one op: Keras takes a dozen, which make a step half as
    long again. Results are Keras's up to rounding.
    """
    on_batch = bool(training and layer.trainable)
    has_op = normalises_last(layer) and layer.epsilon >= _LEAST_EPSILON
    has_op = has_op and inputs.dtype in (tf.float32, tf.float16, tf.bfloat16)
    if not has_op or mask is not None or (on_batch and layer.synchronized):
        return type(layer).call(layer, inputs, training=training, mask=mask)
    mean, variance = (tf.convert_to_tensor(v) for v in (layer.moving_mean, layer.moving_variance))
    gamma = tf.ones_like(mean) if layer.gamma is None else tf.convert_to_tensor(layer.gamma)
    beta = tf.zeros_like(mean) if layer.beta is None else tf.convert_to_tensor(layer.beta)
    given = (tf.zeros([0]), tf.zeros([0])) if on_batch else (mean, variance)
    found = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=gamma,
        offset=beta,
        mean=given[0],
        variance=given[1],
        epsilon=layer.epsilon,
        is_training=on_batch,
    )
    if on_batch:
        count = tf.cast(tf.size(inputs) / inputs.shape[3], tf.float64)
        biased = tf.cast((count - 1.0) / count, tf.float32)  # the op gives the unbiased variance
        old, new = layer.momentum, 1.0 - layer.momentum
        layer.moving_mean.assign(mean * old + found.batch_mean * new)
        layer.moving_variance.assign(variance * old + found.batch_variance * biased * new)
    return tf.cast(found.y, layer.compute_dtype)


def _convolved(layer: Any, inputs: tf.Tensor, kernel: Any) -> tf.Tensor:
    """The convolution of a Conv2D; Keras 3 has XLA compile that of several groups."""
    if layer.data_format != "channels_last":
        return type(layer).convolution_op(layer, inputs, kernel)
    return tf.nn.convolution(
        inputs,
        tf.convert_to_tensor(kernel),
        list(layer.strides),
        layer.padding.upper(),
        dilations=list(layer.dilation_rate),
    )


def layers_behind(layer: Any) -> list[Any]:
    """The layers that take what a layer gives, in graphs of layers."""
    nodes = getattr(layer, "_outbound_nodes", ())
    return [node.outbound_layer if IS_KERAS2 else node.operation for node in nodes]


def output_shapes(layer: Any) -> list[Any]:
    """The shape of what a layer gives, at each of its places in graphs of layers."""
    nodes = getattr(layer, "_inbound_nodes", ())
    return [node.output_shapes if IS_KERAS2 else node.outputs[0].shape for node in nodes]


def keras_model(name: str, value: Any) -> Any:
    """A model of the Keras that `tf.keras` is; else a TypeError, also of a model of another one."""
    homes, hint = (".src.engine.training", ".src.models.model"), ""
    kinds = [kind.__module__ for kind in type(value).__mro__ if kind.__name__ == "Model"]
    package = next((one.partition(".")[0] for one in kinds if one.endswith(homes)), KERAS)
    if package != KERAS:
        switch = "unset TF_USE_LEGACY_KERAS" if KERAS == "tf_keras" else "set TF_USE_LEGACY_KERAS=1"
        hint = (
            f"It is a model of the package {package}; `tf.keras` is {KERAS} {KERAS_VERSION}. Build "
            f"it with `tf.keras`, or {switch} before TensorFlow is imported."
        )
    return arguments.instance(name, value, tf.keras.Model, "a Keras model", hint)


def layers_of(model: Any) -> list[Any]:
    """A model and all layers in it, each once, in the order in which they hold them.

    Keras 3's own list has the layers inside of another one backwards.
    """
    if IS_KERAS2:
        return list(model._flatten_layers())
    found: dict[int, Any] = {}

    def visit(layer: Any) -> None:
        if id(layer) not in found:
            found[id(layer)] = layer
            for inside in layer._layers:
                visit(inside)

    visit(model)
    return list(found.values())


def registered(kind: type) -> type:
    """Let Keras find a class of ours in its files; those of HDF5 name it without a package."""
    tf.keras.utils.get_custom_objects()[kind.__name__] = kind
    return tf.keras.utils.register_keras_serializable(package="elastic_tf")(kind)


def graph_ends(model: Any) -> tuple[Any, Any] | None:
    """Inputs and outputs of a model that is nothing but its graph of layers; None of others."""
    sequential, is_graph = tf.keras.Sequential, getattr(model, "_is_graph_network", False)
    if IS_KERAS2:
        is_graph = is_graph and type(model).call in (_Functional.call, sequential.call)
    else:
        if isinstance(model, sequential) and type(model).call is sequential.call:
            model = model._functional
        is_graph = isinstance(model, _Functional) and type(model).call is _Functional.call
    return (model.input, model.output) if is_graph else None


class LayerGraph:
    """A model that is nothing but its graph of layers; another one is a TypeError.

    Attributes:
        whole: a model of the same layers that gives what each of them gives, `count` outputs of the
            model last.
    """

    def __init__(self, model: tf.keras.Model) -> None:
        ends = graph_ends(model)
        if ends is None:
            raise TypeError(f"`model` must be a graph of layers. Received: {model}.")
        inputs, self._outputs = ends
        last = tf.nest.flatten(self._outputs)
        self.count = len({*map(id, last)})
        nodes = getattr(model, "_functional", model)._nodes_by_depth.values()
        results = [
            one for level in nodes for node in level for one in tf.nest.flatten(node.outputs)
        ]
        own = {id(one): one for one in (*results, *last)}
        for one in last:
            own[id(one)] = own.pop(id(one))  # once, and last
        self._results = [*own.values()]
        self.whole = tf.keras.Model(inputs, self._results)

    def behind(self, numbers: list[int]) -> tf.keras.Model:
        """From some of those results, by their numbers, to the outputs of the model."""
        return tf.keras.Model([self._results[k] for k in numbers], self._outputs)


def same_settings(made: Any, model: Any) -> None:
    """Give a model of another one's graph what is not in the graph."""
    if IS_KERAS2:
        made._set_dtype_policy(model.dtype_policy)
        made.add_loss([*model._callable_losses])
    else:
        made.dtype_policy = model.dtype_policy


def on_stored_statistics(model: Any) -> Any:
    """A copy of a graph of layers whose batch normalisations use stored statistics in training."""
    return _exchanged(model, *PLAIN_NORMALISATIONS)


def of_keras_alone(model: Any) -> Any:
    """A model that does the same in inference, or itself, without layers of ours."""
    has_own = any(type(layer) is BatchNormalization for layer in model.layers)
    return _exchanged(model, *PLAIN_NORMALISATIONS[::-1]) if has_own else model


def _exchanged(model: Any, old: type, new: type) -> Any:
    """A copy of a graph with layers of one kind for those of another."""

    def copied(layer: Any) -> Any:
        kind: Any = new if type(layer) is old else type(layer)
        return kind.from_config(layer.get_config())

    same = tf.keras.models.clone_model(model, clone_function=copied)
    same.set_weights(model.get_weights())
    return same


def input_spec(model: Any) -> Any:
    """Nested `tf.TensorSpec` of what a model is called with; None where it has never been."""
    if _SPEC in vars(model):
        return vars(model)[_SPEC]
    inputs = (graph_ends(model) or (None,))[0]
    is_graph = getattr(model, "_is_graph_network", True)  # one of Keras 3 does not say
    if inputs is None and getattr(model, "inputs", None) and is_graph:
        inputs = model.input
    if inputs is not None:
        return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), inputs)
    if IS_KERAS2:
        saved = model.save_spec()
        return None if saved is None else saved[0][0]
    shapes = [*(model._build_shapes_dict or {}).values()]
    if len(shapes) != 1 or not model.built:
        return None
    return tf.keras.tree.map_shape_structure(
        lambda shape: tf.TensorSpec((None, *shape[1:]), model.input_dtype), shapes[0]
    )


def set_input_spec(model: Any, spec: Any) -> None:
    """Say what a model is called with, before it has been."""
    if IS_KERAS2:
        model._set_save_spec(spec)
    else:
        vars(model)[_SPEC] = spec


@contextlib.contextmanager
def seeds_kept(model: Any) -> Iterator[None]:
    """Put back the seeds that layers draw while they are traced: those of Keras 3 draw none."""
    found: Any = (getattr(layer, "_random_generator", None) for layer in model._flatten_layers())
    generators = [one for one in found if hasattr(one, "_seed")]
    seeds = [generator._seed for generator in generators]
    try:
        yield
    finally:
        for generator, seed in zip(generators, seeds):
            generator._seed = seed


def has_strategy(model: Any) -> bool:
    """Whether a model was made in the scope of a distribution strategy."""
    name = "_distribution_strategy" if IS_KERAS2 else "_distribute_strategy"
    return getattr(model, name) is not None


def check_compiled(model: Any) -> None:
    """Raise Keras's own error where a model was not compiled."""
    if IS_KERAS2:
        model._assert_compile_was_called()
    else:
        model._assert_compile_called("fit")


def compiled_loss(model: Any) -> Any:
    """What a model was compiled with: another one after each `compile`."""
    return model.compiled_loss if IS_KERAS2 else model._compile_loss


def called(model: Any, x: Any, training: bool) -> Any:
    """The predictions of a model."""
    takes = IS_KERAS2 or model._call_has_training_arg
    return model(x, training=training) if takes else model(x)


def forget_results(model: Any) -> None:
    """Let go of the graph that was traced last: metrics of Keras 2 hold their result in it."""
    for metric in model.metrics:
        if hasattr(metric, "_call_result"):
            del metric._call_result


def build_metrics(model: Any, y: Any, y_pred: Any) -> None:
    """Make the variables of losses and metrics; made in a graph, they would have it traced twice.

    Keras 2 makes them outside of it by itself.
    """
    if IS_KERAS2 or y is None:
        return
    with traced_once(), tf.init_scope():
        for part in (model._compile_loss, model._compile_metrics):
            if part is not None and not part.built:
                part.build(y, y_pred)


def computed_loss(model: Any, x: Any, y: Any, y_pred: Any, weight: Any, training: bool) -> Any:
    """The total loss that a model was compiled with, regularisers included."""
    if IS_KERAS2:
        loss = model.compute_loss(x, y, y_pred, weight)
        model._validate_target_and_loss(y, loss)
        return loss
    build_metrics(model, y, y_pred)
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=training)


def track_loss(model: Any, data: Any, loss: Any) -> None:
    """Add a loss to the mean that the logs show, weighted by the length of the first of the data.

    Targets come first: the inputs may be cut off from a step. Keras 2 has done so by itself.
    """
    if not IS_KERAS2 and model._loss_tracker is not None:
        samples = next(part for part in tf.nest.flatten(data) if part is not None)
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(samples)[0])


def execution(model: Any) -> int:
    """Steps in one call of the train function, now: Keras 2 lowers it at the end of an epoch."""
    if not IS_KERAS2:
        return int(model.steps_per_execution)
    steps = model._steps_per_execution
    return 1 if steps is None else int(steps.numpy())


def made_train_function(model: Any, make: Callable[..., Any], steps: int) -> tuple[Any, Any]:
    """Keras's train function of a compiled model, by its `make`, and the `tf.function` in it.

    `make` is Keras's own `make_train_function` of it. One call makes `steps` steps, as compiled:
    Keras 2 would keep to fewer, made for fewer.
    """
    if IS_KERAS2:
        now = model._steps_per_execution.numpy()
        model._steps_per_execution.assign(steps)
        try:
            make(force=True)
        finally:
            model._steps_per_execution.assign(now)
        inside = model.train_tf_function
    else:
        make(force=True)
        inside = inspect.getclosurevars(model.train_function).nonlocals["multi_step_on_iterator"]
        inside = inside if hasattr(inside, "get_concrete_function") else None
    if inside is not None:
        inside._omit_frequent_tracing_warning = True  # a trace per plan is meant here
    return model.train_function, inside
