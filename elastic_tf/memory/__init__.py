"""The memory of a training step, known before it runs.

In: a model, a batch or its size, a plan. Out: what TensorFlow's executor allocates, when, and the
peak: `step`. `largest_batch` fits into a limit, `Limit` keeps a selection below it, and `swapped`
trains with activations in a file. Beside them stand operations (`ops`), what is kept for the
backward pass (`activations`), what a smaller runtime takes (`kernels`), and `energy`.
"""

from elastic_tf.memory.steps import Limit, StepMemory, largest_batch, step
from elastic_tf.memory.swapping import swapped

__all__ = ["Limit", "StepMemory", "largest_batch", "step", "swapped"]
