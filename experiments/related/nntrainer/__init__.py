"""NNTrainer: the memory of a training step, planned before it runs.

In: a functional Keras model, a batch size, a plan. Out: for each tensor of the step when it is
used, whose memory it has, and at which offset; the peak, and the least that any offsets need. It
sees layers, as that runtime does; `elastic_tf.memory.step` sees the ops that TensorFlow runs.

Source: Moon et al., NNTrainer, ICSE 2024.
"""

from __future__ import annotations

from related.nntrainer.memory_plan import MemoryPlan, plan

__all__ = ["MemoryPlan", "plan"]
