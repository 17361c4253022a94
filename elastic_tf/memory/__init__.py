"""The memory of a training step, known before it runs.

In: a model, a batch or its size, a plan. Out: what TensorFlow's executor allocates, when, and the
peak: `step`. `largest_batch` fits into a limit, and `Limit` keeps a selection below it. Beside them
stand operations (`ops`) and what a smaller runtime takes (`kernels`).
"""

from elastic_tf.memory.steps import Limit, StepMemory, largest_batch, step

__all__ = ["Limit", "StepMemory", "largest_batch", "step"]
