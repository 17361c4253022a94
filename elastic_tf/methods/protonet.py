"""Prototypes: a class is the mean of the features of its images, the nearest mean is predicted.

A batch holds support images and queries. The label of a support image is its class, that of a query
is -1 - class: the model trained by such batches is a plain network that ends in features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.cut import between
from elastic_tf.files import array, quarter_of_memory
from elastic_tf.methods.kernels import KernelCosts, kernel_costs
from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan
from elastic_tf.train import optimizers
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.prefix import Forward, step_behind
from elastic_tf.train.engine.state import LastUsed
from elastic_tf.train.engine.tracing import host_generators_kept
from elastic_tf.train.head.features import dense_layers

L = tf.keras.layers
_SCALE = 10.0  # of cosines, which lie between -1 and 1
_BATCH = 64  # images in a forward pass
_SAMPLES = 32  # in a pass that is differentiated
_SUFFIXES = 8  # traced steps that are kept
_BETWEEN = frozenset({"BiasAdd", "FusedBatchNormV3", "Identity"})  # a kernel and its activation
_ACTIVATIONS = frozenset("Elu LeakyRelu Relu Relu6 Selu Sigmoid Softplus Tanh".split())


class ProtoNet:
    """A network of features, and classes found by their distance.

    p(k | x) is the softmax of 10 * cosine(f(x), mean f(support of k)).

    Args:
        network: Keras model that ends in vectors of features. Weights are shared with it.
        bn_training: let batch normalisation use the batch's statistics in training; else it runs on
            the stored ones.

    Attributes:
        model: the elastic model that is trained, with Adam if nothing else compiles it.

    Raises:
        ValueError: the network gives no vectors.

    Source: Snell et al., Prototypical Networks, NeurIPS 2017; Kwon et al., TinyTrain, ICML 2024,
    Eq. (1), whose distance has no scale.
    """

    def __init__(self, network: tf.keras.Model, bn_training: bool = False) -> None:
        stack.keras_model("network", network)
        shape = network.output_shape if stack.graph_ends(network) else None
        if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] is None:
            raise ValueError(
                "`network` must be a functional or sequential model that ends in one vector of "
                f"features for each image. Received: '{network.name}' of type "
                f"{type(network).__name__} with outputs of shape {shape}. Make one with "
                "tf.keras.Model(inputs, outputs), for instance with GlobalAveragePooling2D."
            )
        inputs = tf.keras.Input(network.input_shape[1:], dtype=network.inputs[0].dtype)
        self.model = ElasticModel(inputs, network(inputs), name="protonet")
        self._statistics = "batch" if bn_training else "stored"
        self.network = network
        self._adam = optimizers.adam(1e-3)
        self._suffixes = LastUsed(_SUFFIXES)
        self._fisher: dict[Sequence[int], ChannelFisher] = {}
        self.compile(self._adam)
        self._features = tf.function(
            lambda x: self.model(x, training=False),
            input_signature=[tf.TensorSpec((None, *inputs.shape[1:]), inputs.dtype)],
        )
        self._features._omit_frequent_tracing_warning = True  # one trace for each network

    @classmethod
    def of(cls, model: Any) -> ProtoNet:
        """That of a network or classifier, without the dense layer that a classifier ends in."""
        if isinstance(model, ProtoNet):
            return model
        stack.keras_model("model", model)
        dense = dense_layers(model)
        if dense and dense[-1] in model.layers and stack.graph_ends(model):
            model = tf.keras.Model(model.input, dense[-1].input)
        if stack.graph_ends(model) and len(model.output_shape) == 4:
            model = tf.keras.Model(model.input, L.GlobalAveragePooling2D()(model.output))
        return cls(model)

    def compile(self, optimizer: tf.keras.optimizers.Optimizer) -> None:
        """Train by this optimizer from now on."""
        self._suffixes.clear()
        options: dict[str, Any] = {"metrics": [self.accuracy], "statistics": self._statistics}
        self.model.compile(optimizer, self.loss, **options)

    def adam(self, learning_rate: float) -> None:
        """Train by Adam from its beginning; what was traced for a plan is used again."""
        if self.model.optimizer is not self._adam:
            self.compile(self._adam)
        for variable in self._adam.variables:  # its moments and counts
            variable.assign(tf.zeros_like(variable))
        self._adam.learning_rate = learning_rate

    def suffix(self, plan: Plan) -> Suffix:
        """What a plan trains, with the frozen part before it apart; those used lately are kept."""
        self.model.set_plan(plan)
        found: Suffix = self._suffixes.get(plan.traced) or Suffix(self.model, plan)
        self._suffixes.put(plan.traced, found)
        return found

    @cached_property
    def costs(self) -> KernelCosts:
        """What the kernels cost."""
        return kernel_costs(self.model)

    def fisher(self, kernels: Sequence[int], images: Any, labels: Any, prototypes: Any) -> Any:
        """Fisher information of the channels of kernels, prototypes held; as `ChannelFisher`."""

        def loss(features: tf.Tensor, labels: tf.Tensor, prototypes: tf.Tensor) -> tf.Tensor:
            logits = self.logits(tf.cast(features, tf.float32), prototypes)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

        if kernels not in self._fisher:
            self._fisher[kernels] = ChannelFisher(self.model, loss, kernels)
        return self._fisher[kernels](images, labels, prototypes)

    def checked(self, images: Any) -> np.ndarray:
        """Images as an array; a ValueError if the network cannot take them."""
        x, takes = arguments.samples("images", images), self.network.input_shape[1:]
        fits = [wanted in (None, size) for wanted, size in zip(takes, x.shape[1:])]
        if x.ndim != 4 or not len(x) or not all(fits):
            raise ValueError(
                f"`images` must be as '{self.network.name}' takes them, (n, height, width, "
                f"channels) with n at least 1 and then {takes}. Received: shape {x.shape}. A "
                "single image is images[None], a single channel images[..., None]; tf.image.resize "
                "and np.repeat(images, 3, axis=-1) make others fit."
            )
        bad = np.flatnonzero([not np.isfinite(one).all() for one in x])
        if len(bad):
            raise ValueError(
                "`images` must be finite. Received: NaN or infinite numbers in "
                f"{len(bad)} of {len(x)}, the first of them images[{bad[0]}]. Leave these out."
            )
        return x

    def features(self, images: np.ndarray) -> np.ndarray:
        """The features of images; float32 (n, width)."""
        kind = tf.as_dtype(self.model.inputs[0].dtype).as_numpy_dtype
        parts = range(0, len(images), _BATCH)
        found = [self._features(images[k : k + _BATCH].astype(kind)).numpy() for k in parts]
        return np.concatenate(found)

    def prototypes(self, features: Any, labels: Any) -> tf.Tensor:
        """The mean features of each class; (way, width)."""
        return tf.math.unsorted_segment_mean(features, labels, tf.reduce_max(labels) + 1)

    def logits(self, features: Any, prototypes: Any) -> tf.Tensor:
        """How near features (n, width) are to each prototype (way, width); (n, way)."""
        f, p = (tf.math.l2_normalize(one, -1) for one in (features, prototypes))
        return _SCALE * tf.matmul(f, p, transpose_b=True)

    def loss(self, y: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """The cross-entropy of each query of a batch; its prototypes are differentiated too."""
        labels, logits = self._queries(y, features)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def accuracy(self, y: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Whether each query of a batch is nearest to the prototype of its class."""
        labels, logits = self._queries(y, features)
        return tf.cast(tf.equal(labels, tf.argmax(logits, -1, labels.dtype)), tf.float32)

    def _queries(self, y: tf.Tensor, features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.cast(tf.reshape(y, (-1,)), tf.int64)  # metrics are given numbers of float32
        features = tf.cast(features, tf.float32)
        is_query = y < 0
        support = tf.boolean_mask(features, ~is_query)
        prototypes = self.prototypes(support, tf.boolean_mask(y, ~is_query))
        logits = self.logits(tf.boolean_mask(features, is_query), prototypes)
        return -1 - tf.boolean_mask(y, is_query), logits


class Suffix:
    """The part of a network that a plan trains and all behind it, traced once for all batch sizes.

    The elastic model of one input is compiled and under the plan. `step` trains on labels and the
    activations of a batch.
    """

    def __init__(self, model: ElasticModel, plan: Plan) -> None:
        self._model = model
        kind = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype)
        self._dtype = kind.dtype.as_numpy_dtype
        forward = Forward(model, kind)
        self._cut = forward.cut(model._trained(plan))
        # the images where nothing is frozen before what is trained
        self._taken = self._cut.tensors or forward.inputs
        self._before = between(forward.graph, forward.inputs, self._taken)
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in self._taken]
        labels = tf.TensorSpec((None,), tf.int64)
        model.make_train_function()  # makes the optimizer's slots
        self.step = tf.function(self._traced, autograph=False, input_signature=[labels, *specs])

    def activations(self, parts: Iterable[np.ndarray], count: int) -> list[np.ndarray]:
        """What steps take of `count` images, given some at a time: an array for each tensor."""
        memory, at = quarter_of_memory() // len(self._taken), 0
        found = [
            array((count, *one.shape[1:]), one.dtype.as_numpy_dtype, memory=memory)
            for one in self._taken
        ]
        for some in parts:
            for start in range(0, len(some), _BATCH):
                images = tf.constant(some[start : start + _BATCH].astype(self._dtype))
                for whole, one in zip(found, self._before(images)):
                    whole[at : at + len(images)] = one
                at += len(images)
        return found

    def _traced(self, labels: tf.Tensor, *taken: tf.Tensor) -> Any:
        model = self._model
        if not self._cut.tensors:
            return model.train_step((taken[0], labels))
        kind = model.inputs[0]
        images = tf.zeros([tf.shape(labels)[0], *kind.shape[1:]], kind.dtype)
        varying, kinds = self._cut.varying(model), self._cut.kinds
        return step_behind(model.train_step, (images, labels), varying, kinds, taken)


class ChannelFisher:
    """Fisher information of each output channel of the kernels of a model.

    delta[o] = sum over n of (sum over places of a * g)^2 / (2 count), a the channel's activation of
    sample n, behind the activation function of its kernel, and g the gradient of the loss of that
    sample alone. Layers run as in inference. A kernel's Fisher potential is the sum of its deltas.

    Args:
        model: elastic model, built.
        loss: (outputs, y, *shared) -> (n,), the loss of each sample.
        kernels: indices of the tensors that are looked at.

    Source: Kwon et al., TinyTrain, ICML 2024, Eq. (2), which leaves open where a is taken.
    """

    def __init__(
        self, model: ElasticModel, loss: Callable[..., tf.Tensor], kernels: Sequence[int]
    ) -> None:
        self._model, self._loss = model, loss
        self._index = {id(model.tensors[k]): int(k) for k in kernels}
        self._found: list[int] = []  # kernel of each result of the trace
        self._run: Any = None

    def __call__(self, x: Any, y: Any, *shared: Any) -> dict[int, np.ndarray]:
        """The deltas of each kernel, by its index among the tensors; float64 (channels,).

        The loss is given what is `shared` as a whole; x and y are samples first, some at a time.

        Raises:
            ValueError: a delta is not finite.
        """
        given = [tf.convert_to_tensor(one) for one in (x, y, *shared)]
        if self._run is None:  # one trace serves all lengths
            kinds = [tf.TensorSpec((None, *one.shape[1:]), one.dtype) for one in given]
            self._run = tf.function(self._trace, input_signature=kinds)
        found: dict[int, Any] = {}
        with host_generators_kept(self._model):
            for start in range(0, len(x), _SAMPLES):
                parts = (one[start : start + _SAMPLES] for one in given[:2])
                results = self._run(*parts, *given[2:])  # the first call makes `_found`
                for k, part in zip(self._found, results):
                    found[k] = found.get(k, 0.0) + part.numpy().astype(np.float64)
        for k, sums in found.items():
            if not np.isfinite(sums).all():
                raise ValueError(
                    "Fisher information must be finite. Received: "
                    f"{arguments.brief(sums)} of '{self._model.tensors[k].name}'. Look at the "
                    "samples and the weights."
                )
        return {k: found[k] / (2 * len(x)) for k in sorted(found)}

    def _trace(self, x: tf.Tensor, *given: tf.Tensor) -> list[tf.Tensor]:
        with stack.never_differentiated(), modes.recorded(self._model) as uses:
            total = tf.reduce_sum(self._loss(self._model(x, training=False), *given))
        uses = [use for use in uses if id(use.kernel) in self._index]
        outputs = [_activated(use.y) for use in uses]
        results: dict[int, tf.Tensor] = {}
        for use, a, g in zip(uses, outputs, tf.gradients(total, outputs)):
            if g is not None:
                # of each sample; a depthwise kernel's channel may have several outputs
                products = tf.cast(a * g, tf.float32)
                sums = tf.reduce_sum(products, range(1, len(a.shape) - 1))
                k, each = self._index[id(use.kernel)], getattr(use.layer, "depth_multiplier", 1)
                sums = tf.reduce_sum(tf.reshape(sums, (-1, a.shape[-1] // each, each)), -1)
                results[k] = results.get(k, 0.0) + tf.reduce_sum(sums**2, 0)
        self._found = [*results]
        return [*results.values()]


def _activated(y: tf.Tensor) -> tf.Tensor:
    """What the activation function behind a product gives; else the last it is alone used for."""
    while len(y.consumers()) == 1:
        (op,) = y.consumers()
        if op.type not in _BETWEEN | _ACTIVATIONS or op.inputs[0] is not y:
            break
        y = op.outputs[0]
        if op.type in _ACTIVATIONS:
            break
    return y
