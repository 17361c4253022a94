"""Elastic training for Keras: choose at run time which tensors to train within a time budget."""

from __future__ import annotations

import os

# TensorFlow reports a missing CUDA as errors at start-up. What really fails raises an exception.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from elastic_tf import datasets, importance, optimizers, zoo
from elastic_tf.callback import ElasticCallback
from elastic_tf.model import ElasticMixin, ElasticModel
from elastic_tf.profiler import profile_model
from elastic_tf.selection import Selection, select_tensors
from elastic_tf.timing import TimingProfile

__version__ = "0.1.0"

__all__ = [
    "ElasticCallback",
    "ElasticMixin",
    "ElasticModel",
    "Selection",
    "TimingProfile",
    "datasets",
    "importance",
    "optimizers",
    "profile_model",
    "select_tensors",
    "zoo",
]
