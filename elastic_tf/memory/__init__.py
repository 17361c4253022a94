"""The memory of a training step, planned before it runs.

In: a Keras model, a batch or its size, a plan. Out: for each tensor of the step when it is used,
whose memory it has, and at which offset; the peak, and the least that any offsets need. `plan` sees
layers, as NNTrainer (Moon et al., ICSE 2024), `step` the ops that TensorFlow runs; `Limit` keeps a
selection below so many bytes.
"""

from elastic_tf.memory.fitting import Limit, largest_batch
from elastic_tf.memory.memory_plan import MemoryPlan, PlannedTensor, plan
from elastic_tf.memory.steps import step
from elastic_tf.memory.swapping import swapped

__all__ = [
    "Limit",
    "MemoryPlan",
    "PlannedTensor",
    "largest_batch",
    "plan",
    "step",
    "swapped",
]
