"""What the gradients of kernels cost, exact and filtered, as the paper of the latter counts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.graph import SHAPES, nodes_of, reached_from
from elastic_tf.methods.kernels import traced
from elastic_tf.plan import FILTERED, FROZEN, Plan, as_plan
from elastic_tf.train.engine.gradients import Filter


class GradientCosts(NamedTuple):
    """Of one image; arrays have shape (N,), run in forward order, and are 0 where nothing is due.

    Attributes:
        flops: floating point operations of the gradients by each kernel and by its inputs; int64.
        kept: bytes that each trained kernel keeps of its inputs; int64.
    """

    flops: np.ndarray
    kept: np.ndarray


def gradient_costs(model: tf.keras.Model, plan: Plan | np.ndarray | None = None) -> GradientCosts:
    """Count what training kernels under a plan costs beside the forward pass.

    A gradient by the inputs is due where these depend on a trained kernel. Biases, normalisation
    and activations are not counted. An exact kernel's gradient counts
    Cx Cy ((k^2 + 1) Hy Wy - 1) as in the paper, less than the 2 Cx Cy k^2 Hy Wy that it takes.

    Args:
        model: elastic and built for one size of images.
        plan: how each tensor is trained; None: all exact.

    Source: Yang, Li, Marculescu, CVPR 2023, Eqs. (1), (15) and Sec. 3.4; where a kernel is of
    groups, an output meets the inputs of its group alone.
    """
    tensors = arguments.elastic(model).tensors
    plan = as_plan(plan, len(tensors))
    index = {id(tensor): k for k, tensor in enumerate(tensors)}
    graph, uses = traced(model)
    modes = {use.y.op: int(plan.modes[index[id(use.kernel)]]) for use in uses}
    starts = [op for op, mode in modes.items() if mode != FROZEN]
    reached = reached_from(nodes_of(graph.get_operations(), SHAPES), starts)
    flops, kept = (np.zeros(len(tensors), np.int64) for _ in range(2))
    for use in uses:
        k, mode = index[id(use.kernel)], modes[use.y.op]
        own, passed, size = _counts(use, FILTERED.get(mode))
        flops[k] += (mode != FROZEN) * own + (use.x.op in reached) * passed
        kept[k] += (mode != FROZEN) * size
    return GradientCosts(flops, kept)


def _counts(use: Any, r: int | None) -> tuple[int, int, int]:
    """Operations of the gradients by kernel and inputs, and bytes of the inputs."""
    x, pixels = use.x.shape, math.prod(use.y.shape[1:-1])
    if x.rank == 2:  # of a dense layer
        return math.prod(use.kernel.shape), 2 * math.prod(use.kernel.shape), _bytes(use.x)
    is_depthwise = isinstance(use.layer, tf.keras.layers.DepthwiseConv2D)
    groups = x[-1] if is_depthwise else use.layer.groups
    outputs, taps = use.y.shape[-1], math.prod(use.kernel.shape[:2])
    weights = math.prod(use.kernel.shape) // taps
    if r is None:
        own = weights * ((taps + 1) * pixels - 1)
        return own, 2 * weights * pixels * taps, _bytes(use.x)
    padding = use.layer.padding.upper()
    made = Filter(x, use.kernel.shape, r, use.layer.strides[0], padding, is_depthwise)
    patches = made.down.number * made.along.number
    means = outputs * (pixels + patches)
    passed = patches * x[-1] * (2 * outputs // groups - 1) + weights * (taps - 1)
    return weights * (2 * patches - 1) + means, passed, patches * x[-1] * use.x.dtype.size


def _bytes(x: tf.Tensor) -> int:
    """Of the inputs of one image, without zeros around them."""
    x = x.op.inputs[0] if x.op.type in ("Pad", "PadV2") else x
    return math.prod(x.shape) * x.dtype.size
