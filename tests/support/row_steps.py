"""A timed step on numbers of samples, as a `fit` on `et.Samples` has it."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.timing.step import StepFunction
from elastic_tf.train.engine.prefix import NotCacheable
from elastic_tf.train.engine.rows import RowTraining
from elastic_tf.train.samples import Rows


class RowStep(StepFunction):
    """A step on `Rows`: what lies before the first trained tensor is computed now.

    Of samples with `memory=0` it is computed in each step.
    """

    def __init__(self, model: et.ElasticModel, mask: np.ndarray, samples: et.Samples) -> None:
        super().__init__(model, mask)
        self._rows = RowTraining(model, samples)
        with model._elastic.planned(self.plan):
            self._rows.cache(model._trained(self.plan), epochs=2 * samples.views)
        with contextlib.suppress(NotCacheable):  # traced whole when it is called
            rows = Rows(tf.TensorSpec((samples.batch_size,), tf.int64))
            self._function.get_concrete_function(rows)

    def _step(self, data: Any) -> Any:
        return self._rows.step(super()._step, data, self.model._trained(self.plan))
