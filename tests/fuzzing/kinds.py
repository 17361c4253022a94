"""Models, data and optimizers of the random comparisons, each with a name."""

from __future__ import annotations

from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from fuzzing.case import Case

from elastic_tf import stack
from elastic_tf.train.optimizers.named import FusedAdam

L, K = tf.keras.layers, tf.keras.optimizers
IMAGE, CLASSES, WORDS = (6, 6, 2), 3, 12
DECAY, CLIP = 0.02, 0.1  # of weights and norms
IS_KERAS_3 = not stack.KERAS_VERSION.startswith("2.")
OPTIONS = ("clipnorm", "global_clipnorm", "decay", "schedule")


# With a large epsilon, so that rounding is not amplified where gradients vanish.
OPTIMIZERS = {
    "sgd": lambda rate, **o: K.SGD(rate, **o),
    "momentum": lambda rate, **o: K.SGD(rate, momentum=0.9, nesterov=True, **o),
    "adam": lambda rate, **o: K.Adam(rate, epsilon=1e-3, **o),
    "adamw": lambda rate, **o: K.AdamW(rate, epsilon=1e-3, **{"weight_decay": 0.05, **o}),
    "adamax": lambda rate, **o: K.Adamax(rate, epsilon=1e-3, **o),
    "rmsprop": lambda rate, **o: K.RMSprop(rate, epsilon=1e-3, momentum=0.5, **o),
    "adagrad": lambda rate, **o: K.Adagrad(rate, epsilon=1e-3, **o),
    "adadelta": lambda rate, **o: K.Adadelta(rate, epsilon=1e-3, **o),
    "fused_adam": lambda rate, **o: FusedAdam(rate, epsilon=1e-3, **o),
}
COUNTED = ("adam", "adamw", "adamax", "fused_adam")  # a step count for each tensor
NEW = (*COUNTED, "sgd", "momentum", "rmsprop", "adagrad", "adadelta")


def optimizer(case: Case) -> Any:
    """What the library's model is compiled with."""
    options: dict[str, Any] = {}
    if "decay" in case.options:
        options["weight_decay"] = DECAY
    options.update({name: CLIP for name in ("clipnorm", "global_clipnorm") if name in case.options})
    rate: Any = case.rate
    if "schedule" in case.options:
        rate = K.schedules.ExponentialDecay(case.rate, 2, 0.7)
    return OPTIMIZERS[case.optimizer](rate, **options)


def losses(case: Case) -> list[Any]:
    """One for each output."""
    first = {
        "mse": tf.keras.losses.MeanSquaredError,
        "sparse": lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "categorical": tf.keras.losses.CategoricalCrossentropy,
    }[case.loss]()
    return [first, *([tf.keras.losses.MeanSquaredError()] if case.model == "shared" else [])]


def data(case: Case) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], Any]:
    """Inputs, targets of each output, and sample weights or None."""
    rng = np.random.default_rng(case.seed)
    images = rng.normal(0.5, 1.0, (case.samples, *IMAGE)).astype(np.float32)
    x: tuple[np.ndarray, ...] = (images,)
    if case.model == "text":
        x = (rng.integers(0, WORDS, (case.samples, 3)),)
    elif case.model == "shared":
        x = (images, rng.normal(size=images.shape).astype(np.float32))
    labels = rng.integers(0, CLASSES, case.samples)
    y = {
        "mse": rng.normal(size=(case.samples, CLASSES)).astype(np.float32),
        "sparse": labels,
        "categorical": np.eye(CLASSES, dtype=np.float32)[labels],
    }[case.loss]
    both = (y, rng.normal(size=(case.samples, 2)).astype(np.float32))
    weight = rng.uniform(0.5, 2.0, case.samples).astype(np.float32)
    return x, both[: len(losses(case))], weight if case.weights == "sample" else None


CLASS_WEIGHTS = {0: 1.0, 1: 2.0, 2: 0.5}


def augment(x: Any, seed: Any) -> Any:
    """One view of a sample."""
    return x + 0.3 * tf.random.stateless_normal(tf.shape(x), tf.cast(seed, tf.int32))


def model(case: Case, *, elastic: bool) -> Any:
    """A network with weights that the seed decides, elastic or plain."""
    tf.keras.utils.set_random_seed(case.seed)
    if case.model == "subclassed":
        made = (ElasticOwn if elastic else Own)(case)
        made(data(case)[0][0][:1])
        return made
    made = MODELS[case.model](case)
    return et.ElasticModel.from_model(made) if elastic else made


def _kernel(case: Case) -> Any:
    return tf.keras.regularizers.L2(case.l2) if case.l2 else None


def _head(case: Case) -> Any:
    activation = "softmax" if case.loss == "categorical" else None
    return L.Dense(
        CLASSES, activation, use_bias=case.bias, kernel_regularizer=_kernel(case), name="head"
    )


def _dense(case: Case) -> Any:
    inputs = L.Input(IMAGE)
    x = L.Dense(8, "tanh", kernel_regularizer=_kernel(case), name="one")(L.Flatten()(inputs))
    x = L.Dense(6, "tanh", name="two")(x)
    return tf.keras.Model(inputs, _head(case)(x))


def _conv(case: Case) -> Any:
    inputs = L.Input(IMAGE)
    x = L.Conv2D(3, 3, kernel_regularizer=_kernel(case), name="conv1")(inputs)
    x = L.Activation("tanh")(L.BatchNormalization(name="norm1", momentum=0.8)(x))
    x = L.BatchNormalization(name="norm2", momentum=0.8)(L.Conv2D(4, 3, name="conv2")(x))
    return tf.keras.Model(inputs, _head(case)(L.Flatten()(x)))


def _residual(case: Case) -> Any:
    inputs = L.Input(IMAGE)
    x = L.Conv2D(4, 3, padding="same", name="stem")(inputs)
    for k in range(2):
        branch = L.BatchNormalization(name=f"norm{k}", momentum=0.8)(x)
        branch = L.Conv2D(4, 3, padding="same", use_bias=False, name=f"conv{k}")(branch)
        x = L.Add()([x, L.Activation("tanh")(branch)])
    return tf.keras.Model(inputs, _head(case)(L.GlobalAveragePooling2D()(x)))


def _shared(case: Case) -> Any:
    one, two = L.Input(IMAGE), L.Input(IMAGE)
    conv = L.Conv2D(3, 3, activation="tanh", kernel_regularizer=_kernel(case), name="shared")
    side = L.Flatten()(conv(one))
    x = L.Concatenate()([side, L.Flatten()(conv(two))])
    x = L.BatchNormalization(name="norm", momentum=0.8)(L.Dense(5, name="joined")(x))
    return tf.keras.Model([one, two], [_head(case)(x), L.Dense(2, name="side")(side)])


def _text(case: Case) -> Any:
    inputs = L.Input((3,), dtype="int64")
    x = L.Embedding(WORDS, 4, name="words")(inputs)
    x = L.LSTM(4, kernel_regularizer=_kernel(case), unroll=True, name="lstm")(x)
    return tf.keras.Model(inputs, _head(case)(x))


def _nested(case: Case) -> Any:
    inputs = L.Input(IMAGE)
    x = L.Conv2D(3, 3, name="conv1")(inputs)
    x = L.BatchNormalization(name="norm1", momentum=0.8)(x)
    backbone = tf.keras.Model(inputs, L.Conv2D(4, 3, activation="tanh", name="conv2")(x), name="b")
    outer = L.Input(IMAGE)
    x = L.Dense(5, kernel_regularizer=_kernel(case), name="neck")(L.Flatten()(backbone(outer)))
    return tf.keras.Model(outer, _head(case)(x))


class Own(tf.keras.Model):
    """A network with a `call` of its own."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.conv = L.Conv2D(3, 3, name="conv")
        self.norm = L.BatchNormalization(name="norm", momentum=0.8)
        self.flat = L.Flatten()
        self.neck = L.Dense(5, "tanh", kernel_regularizer=_kernel(case), name="neck")
        self.head = _head(case)

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.head(self.neck(self.flat(self.norm(self.conv(inputs), training=training))))


class ElasticOwn(et.ElasticMixin, Own):
    """The same, elastic."""


MODELS = {
    "dense": _dense,
    "conv": _conv,
    "residual": _residual,
    "shared": _shared,
    "text": _text,
    "nested": _nested,
    "subclassed": None,
}
FUNCTIONAL = [name for name in MODELS if name != "subclassed"]
