"""Shampoo: a kernel moves along its momentum, whitened by what its gradients were.

A kernel is taken for a matrix, of rows that inputs are multiplied by and columns that it gives.
With S the moving average of G G^T over its gradients G, the momentum is multiplied by S^(-1/2):
where gradients are small it moves as far as where they are large. S is kept for blocks of rows, and
some of the kernels get new roots in each step, so that no step is much longer than another; their
first ones they get in their first step, for what is not whitened moves few directions far. The
update is as large as one of Adam at the same learning rate, and less for a kernel of small numbers,
which would move by more of itself than others; what is no matrix is updated by Adam.

Sources: Gupta et al., Shampoo, ICML 2018, Algorithm 1, of which one side is kept; Anil et al.,
Scalable Second Order Optimization for Deep Learning, 2020, Sec. 4 and 5 (blocks, roots now and
then, the size of another optimizer's update); Jordan et al., Muon, 2024 (the quintic iteration);
Shazeer and Stern, Adafactor, ICML 2018, Sec. 8 (updates relative to the size of a tensor).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.lite.updates import DAMPING, EVERY, ITERATIONS, QUINTIC, SIZES
from elastic_tf.train.optimizers.named import FusedAdam, check_rate

_BLOCK = 64  # rows, at most
_LEAST = 16  # rows and columns of what is a matrix


@stack.registered
class Shampoo(FusedAdam):
    """Shampoo for kernels, Adam for all else; made by `shampoo`."""

    of_all_channels = ("_grams", "_roots")  # slots that a kernel's channels have in common

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        momentum: float = 0.9,
        memory: float = 0.95,
        name: str = "Shampoo",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
        self.momentum, self.memory = momentum, memory

    def get_config(self) -> dict[str, Any]:
        """Settings, from which Keras makes the optimizer again."""
        return {**super().get_config(), "momentum": self.momentum, "memory": self.memory}

    def build(self, variables: Sequence[Any]) -> None:
        """Make the slots: a momentum of each; of kernels S and its roots, of others squares."""
        if not stack.starts_build(self, variables):
            return
        self._rows = tuple(rows_of(variable) for variable in variables)
        slot = functools.partial(stack.add_slot, self)
        pairs = [(one, _identities(one, rows)) for one, rows in zip(variables, self._rows)]
        self._momentums = [slot(one, "momentum") for one, _ in pairs]
        self._velocities = [slot(one, "velocity") if i is None else None for one, i in pairs]
        self._grams = [None if i is None else slot(one, "gram", 0.0 * i) for one, i in pairs]
        self._roots = [None if i is None else slot(one, "root", i) for one, i in pairs]

    def in_common(self, steps: tf.Tensor, first: int = 0) -> list[tuple[tf.Tensor, ...]]:
        """As of Adam, and whether a kernel gets a new root."""
        steps = tf.cast(steps, tf.int64)
        turns = tf.range(first, first + steps.shape[0], dtype=tf.int64) % EVERY
        is_due = tf.unstack((steps % EVERY == turns) | (steps == 0))  # in its first step, too
        return [(*of_adam, due) for of_adam, due in zip(super().in_common(steps, first), is_due)]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """Update one tensor; Keras 3 says the rate."""
        index = stack.index_of(self, variable)
        rows = self._rows[index]
        if not rows:
            super().update_step(gradient, variable, learning_rate)
            return
        matrix = tf.reshape(tf.convert_to_tensor(gradient), (rows, -1))  # of an embedding, all rows
        lists = self._momentums, self._grams, self._roots
        momentum, gram, root = (stack.raw(slots[index]) for slots in lists)
        is_padded = gram.shape[0] * gram.shape[1] > rows
        step = _step(variable.dtype, self.momentum, self.memory, is_padded)
        speed = tf.reshape(momentum.read_value(), (rows, -1))
        kernel = tf.reshape(variable.read_value(), (rows, -1))
        speed, square, renewed, moved, factor = step(
            kernel, matrix, speed, gram.read_value(), root.read_value(), self._made_with(index)[-1]
        )
        momentum.assign(tf.reshape(speed, momentum.shape))
        gram.assign(square)
        root.assign(renewed)
        rate = self.learning_rate if learning_rate is None else learning_rate
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle,
            alpha=factor * tf.cast(rate, moved.dtype),
            delta=tf.reshape(moved, variable.shape),
        )


def rows_of(variable: Any) -> int:
    """Rows of a kernel as a matrix; 0 of what is none, as of a depthwise kernel.

    Its axes are parted where that makes it squarest: a convolution's before its last one, those of
    attention between the width of the network and its heads.
    """
    shape = tuple(variable.shape)
    ways = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))]
    best = min(ways, key=lambda way: max(way) / max(min(way), 1), default=(0, 0))
    return best[0] if min(best) >= _LEAST and "embedding" not in variable.name else 0


def blocks_of(rows: int) -> tuple[int, int]:
    """Blocks of a matrix, and the rows of each; the last one may have some to spare."""
    blocks = math.ceil(rows / _BLOCK)
    return blocks, math.ceil(rows / blocks)


def inverse_root(grams: tf.Tensor) -> tf.Tensor:
    """S^(-1/2) of each of some (blocks, rows, rows), up to a factor that all have in common.

    A coupled iteration whose polynomial is steep at zero: small eigenvalues need few iterations;
    each becomes one within 0.7 and 1.2. Zeros give a multiple of the identity.
    """
    grams = tf.convert_to_tensor(grams)
    unit = tf.eye(tf.shape(grams)[-1], dtype=grams.dtype)
    bound = tf.sqrt(tf.reduce_sum(tf.square(grams), (-2, -1), keepdims=True))
    bound = tf.where(bound > 0.0, bound, 1.0)
    a, b, c = QUINTIC
    rest = (grams / bound + DAMPING * unit) / (1.0 + DAMPING)
    found = tf.zeros_like(grams) + unit
    for _ in range(ITERATIONS):
        both = found @ rest
        polynomial = a * unit + b * both + c * both @ both
        rest, found = rest @ polynomial, polynomial @ found
    return found * tf.math.rsqrt(bound)


@functools.cache
def _step(dtype: tf.DType, share: float, memory: float, is_padded: bool) -> Any:
    """From a gradient to the slots, an update, and what makes it as large as the rate is to be.

    Traced once for kernels of all sizes. Padded: the last of the blocks has rows to spare.
    """
    matrix, blocks = (tf.TensorSpec((None,) * rank, dtype) for rank in (2, 3))
    # a copy of its own for each kernel would make first steps a third longer
    options: Any = {"autograph": False, "experimental_attributes": {"_noinline": True}}
    rooted = tf.function(inverse_root, [blocks], **options)

    def step(
        kernel: tf.Tensor,
        gradient: tf.Tensor,
        momentum: tf.Tensor,
        gram: tf.Tensor,
        root: tf.Tensor,
        is_due: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        rows, sizes = tf.shape(gradient)[0], tf.shape(gram)

        def in_blocks(values: tf.Tensor) -> tf.Tensor:
            if is_padded:
                values = tf.pad(values, [[0, sizes[0] * sizes[1] - rows], [0, 0]])
            return tf.reshape(values, (sizes[0], sizes[1], -1))

        momentum = share * momentum + gradient
        split = in_blocks(gradient)
        gram = memory * gram + (1.0 - memory) * tf.matmul(split, split, transpose_b=True)
        # reshaped, for of a branch's result no shape is known before a step runs
        root = tf.reshape(tf.cond(is_due, lambda: rooted(gram), lambda: root), sizes)
        ahead = root @ in_blocks(gradient + share * momentum)
        moved = tf.reshape(ahead, (-1, tf.shape(gradient)[1]))[:rows]
        size = tf.clip_by_value(_root_mean_square(kernel), *SIZES) / SIZES[1]
        factor = tf.math.divide_no_nan(size, _root_mean_square(moved))
        return momentum, gram, root, moved, factor

    signature = [matrix, matrix, matrix, blocks, blocks, tf.TensorSpec((), tf.bool)]
    return tf.function(step, signature, autograph=False)


def shampoo(learning_rate: Any, momentum: float = 0.9, memory: float = 0.95) -> Shampoo:
    """Shampoo for kernels, Adam for the other tensors, at one learning rate for both.

    A kernel's update has the root mean square of the learning rate; where the kernel's own is below
    0.05, as of those that MobileNetV2 expands by, in proportion less, down to 0.4. Kernels of
    convolutions, dense layers and attention are matrices; depthwise ones, embeddings, and those
    with fewer than 16 rows or columns are Adam's. Kernels cost one slot beside S and its roots, two
    blocks of 64 columns.

    Args:
        learning_rate: or a `LearningRateSchedule`.
        momentum: share of it that a step keeps, in [0, 1); Nesterov's.
        memory: share of S that a step keeps, in [0, 1).
    """
    check_rate("learning_rate", learning_rate)
    arguments.number("momentum", momentum, low=0.0, high=1.0, below=True)
    arguments.number("memory", memory, low=0.0, high=1.0, below=True)
    return Shampoo(learning_rate, momentum=momentum, memory=memory)


def _root_mean_square(values: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(2.0 * tf.nn.l2_loss(values) / tf.cast(tf.size(values), values.dtype))


def _identities(variable: Any, rows: int) -> tf.Tensor | None:
    """(blocks, rows of one, the same): the roots of a kernel before its first gradient."""
    if not rows:
        return None
    blocks, each = blocks_of(rows)
    return tf.eye(each, batch_shape=[blocks], dtype=variable.dtype)
