"""Meta-training: a network learns from many episodes to recognise new classes from few images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.methods.fewshot import ProtoNet
from elastic_tf.train import optimizers
from related.tinytrain.episodes import Episodes

_WARM_UP = 0.05  # share of the steps in which the rate rises


def meta_train(
    model: tf.keras.Model | ProtoNet,
    tasks: Episodes,
    *,
    epochs: int = 100,
    steps: int = 2000,
    learning_rate: float = 5e-5,
    optimizer: tf.keras.optimizers.Optimizer | None = None,
    directory: str | Path | None = None,
    **options: Any,
) -> tf.keras.callbacks.History:
    """Train a network on one episode a step, with Keras's progress bar.

    Args:
        model: a network of features, a classifier, whose last dense layer is left out, or a
            ProtoNet. Its weights are trained in place.
        tasks: as `episodes` makes them; step i trains on `tasks[i]`.
        epochs: passes, of so many steps each.
        steps: episodes in each epoch.
        learning_rate: the highest, of a cosine to zero after a linear rise.
        optimizer: in the place of SGD with momentum 0.9 at that rate.
        directory: where a backup goes after each epoch; the same call goes on from it, bit for bit,
            as if it had not been interrupted. It is removed at the end.
        **options: of Keras's `fit`, as verbose or callbacks.

    Source: Kwon et al., TinyTrain, ICML 2024, Sec. 2.1, App. A.3.
    """
    arguments.count("epochs", epochs)
    arguments.count("steps", steps)
    net = ProtoNet.of(model)
    if optimizer is None:
        rate = optimizers.cosine(learning_rate, epochs * steps, warm_up=_WARM_UP)
        optimizer = optimizers.by_name("sgd", rate)
    net.compile(optimizer)
    net.model.set_plan(None)
    callbacks = [*options.pop("callbacks", ())]
    if directory is not None:
        callbacks.append(tf.keras.callbacks.BackupAndRestore(str(directory)))

    def batches() -> Iterator[tuple[Any, Any]]:
        index = int(net.model.optimizer.iterations)  # of a backup, where one was read
        while True:
            task = tasks[index]
            yield batch(*task[:4])
            index += 1

    images = net.model.inputs[0]
    kinds = (tf.TensorSpec(images.shape, images.dtype), tf.TensorSpec((None,), tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=kinds).prefetch(1)
    options |= {"steps_per_epoch": steps, "epochs": epochs, "callbacks": callbacks}
    return net.model.fit(data, **options)


def batch(support: Any, labels: Any, query: Any, query_labels: Any) -> tuple[Any, np.ndarray]:
    """Support images and queries as one batch."""
    x = np.concatenate([support, query]).astype(np.float32)
    return x, np.concatenate([labels, -1 - query_labels]).astype(np.int64)
