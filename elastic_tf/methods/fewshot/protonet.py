"""Prototypes: a class is the mean of the features of its images, the nearest mean is predicted.

A batch holds support images and queries. The label of a support image is its class, that of a query
is -1 - class: the model trained by such batches is a plain network that ends in features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.cut import between
from elastic_tf.files import array, quarter_of_memory
from elastic_tf.memory.kernels import KernelCosts, kernel_costs
from elastic_tf.methods.fewshot.fisher import ChannelFisher
from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan
from elastic_tf.train import optimizers
from elastic_tf.train.engine.prefix import Forward, step_behind
from elastic_tf.train.engine.state import LastUsed
from elastic_tf.train.head.features import dense_layers

L = tf.keras.layers
_SCALE = 10.0  # of cosines, which lie between -1 and 1
_BATCH = 64  # images in a forward pass
_SUFFIXES = 8  # traced steps that are kept


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
        arguments.flag("bn_training", bn_training)
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
        self._adam: Any = None
        self._suffixes = LastUsed(_SUFFIXES)
        self._fisher: dict[Sequence[int], ChannelFisher] = {}
        self.adam(1e-3)
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
        if self._adam is None or self.model.optimizer is not self._adam:
            self._adam = optimizers.adam(learning_rate)
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
        if x.ndim != 4 or not len(x):
            raise ValueError(
                "`images` must have shape (n, height, width, channels), n at least 1. Received: "
                f"shape {x.shape}. A single image is images[None], a single channel "
                "images[..., None]."
            )
        if any(wanted not in (None, size) for wanted, size in zip(takes, x.shape[1:])):
            is_grey = x.shape[3] == 1 != takes[2]
            hint = f"tf.image.resize(images, {takes[:2]})"
            hint = f"np.repeat(images, {takes[2]}, axis=-1)" if is_grey else hint
            raise ValueError(
                f"`images` must have the size that '{self.network.name}' takes, {takes}. Received: "
                f"{x.shape[1:]}. Make them so: {hint}."
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
