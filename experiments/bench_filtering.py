"""Filtered gradients of convolutions against TensorFlow's own, timed in turn, in batches of 4.

On the 3 x 3 convolutions of Yang et al., CVPR 2023, Table 10, and on all different layers of
MobileNet and ResNet50. `gradients` is how many times as fast both gradients are together, from the
sums of the inputs that the forward pass keeps; `with sums` with these sums counted to them. A call
runs up to 16 copies one after another: calling TensorFlow takes as long as a small layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from measuring import BATCH

import elastic_tf as et
from elastic_tf.files import format_table
from elastic_tf.timing.step import time_in_turn
from elastic_tf.train.engine.gradients import Filter

# channels, width, height
TABLE_10 = (
    *((128, 120, 160), (256, 60, 80), (512, 30, 40), (512, 14, 14)),
    *((256, 14, 14), (128, 28, 28), (64, 56, 56)),
)
ROUNDS, SIZE = 9, 128
_NUMBERS = 2**22  # of the inputs of all copies of a layer
COLUMNS = (
    "layer own_ms:.2f gradients_2:.1f with_sums_2:.1f gradients_4:.1f with_sums_4:.1f"
).split()


def main() -> dict[str, Any]:
    """Measure all layers; print a table."""
    layers = {
        f"Table 10: {c}, {w} x {h}": ((BATCH, h, w, c), (3, 3, c, c), 1, "SAME", False)
        for c, w, h in TABLE_10
    }
    for name, alpha in (("mobilenet", 0.75), ("resnet50", 1.0)):
        for layer in et.zoo.build(name, classes=2, input_size=SIZE, alpha=alpha).layers:
            if isinstance(layer, (tf.keras.layers.Conv2D, tf.keras.layers.DepthwiseConv2D)):
                is_depthwise = isinstance(layer, tf.keras.layers.DepthwiseConv2D)
                kernel = layer.trainable_weights[0]
                shape = (BATCH, *layer.input.shape[1:])
                case = (shape, tuple(kernel.shape), layer.strides[0], layer.padding.upper())
                if (*case, is_depthwise) not in layers.values():
                    layers[f"{name}: {layer.name}"] = (*case, is_depthwise)
    rows = [{"layer": name, **measure(*case)} for name, case in layers.items()]
    print(format_table(rows, COLUMNS))
    return {"rows": rows, "batch": BATCH, "image_size": SIZE}


def measure(
    x_shape: tuple[int, ...], shape: tuple[int, ...], strides: int, padding: str, depthwise: bool
) -> dict[str, float]:
    """One layer: medians of the ratios of neighbours in time."""
    rng = np.random.default_rng(0)
    x, kernel = (tf.constant(rng.normal(size=one), tf.float32) for one in (x_shape, shape))
    own = tf.nn.depthwise_conv2d if depthwise else tf.nn.conv2d
    upstream = tf.ones_like(own(x, kernel, (1, strides, strides, 1), padding))
    copies = int(np.clip(_NUMBERS // np.prod(x_shape), 1, 16))

    def exact(x: tf.Tensor, kernel: tf.Tensor, upstream: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = own(x, kernel, (1, strides, strides, 1), padding)  # left out of what runs
        return tape.gradient(y, [x, kernel], upstream)

    def filtered(
        patches: Filter,
        known: tf.Tensor | None,
        x: tf.Tensor,
        kernel: tf.Tensor,
        upstream: tf.Tensor,
    ) -> Any:
        means = patches.means(upstream)
        sums = patches.sums(x) if known is None else known
        return patches.of_input(means, kernel), patches.of_kernel(sums, means)

    def chained(gradients: Callable[..., Any]) -> Callable[[None], Any]:
        @tf.function(autograph=False)
        def run(_: None) -> Any:
            before: list[tf.Tensor] = []
            found = []
            for _ in range(copies):
                with tf.control_dependencies(before):
                    given = [tf.identity(part) for part in (x, kernel, upstream)]
                before = gradients(*given)
                found.extend(tf.reshape(part, [-1])[:1] for part in before)
            return found  # what nothing is taken from would not be computed

        return run

    runs = {"own": chained(exact)}
    for r in (2, 4):
        if r <= min(upstream.shape[1:3]):
            patches = Filter(x.shape, kernel.shape, r, strides, padding, depthwise)
            for what, known in (("gradients", patches.sums(x)), ("with_sums", None)):
                runs[f"{what}_{r}"] = chained(functools.partial(filtered, patches, known))
    for run in runs.values():
        run(None)  # traced
    times = time_in_turn([*runs.values()], None, repeats=ROUNDS) / copies
    ratios = np.median(times[:, :1] / times, axis=0)
    found = {name: float(ratio) for name, ratio in zip(runs, ratios) if name != "own"}
    return {"own_ms": 1e-3 * float(np.median(times[:, 0])), **found}
