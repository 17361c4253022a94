"""The memory of a training step, planned before it runs.

In: a functional Keras model, a batch size, a plan. Out: for each tensor of the step when it is
used, whose memory it has, and at which offset; the peak, and the least that any offsets need. The
method is NNTrainer's (Moon et al., ICSE 2024).
"""

from elastic_tf.memory.fitting import largest_batch
from elastic_tf.memory.memory_plan import MemoryPlan, PlannedTensor, plan
from elastic_tf.memory.swapping import swapped

__all__ = ["MemoryPlan", "PlannedTensor", "largest_batch", "plan", "swapped"]
