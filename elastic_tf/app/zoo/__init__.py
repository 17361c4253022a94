"""Image classifiers to adapt: a backbone with its preprocessing inside, and a new head."""

from elastic_tf.app.zoo.models import ARCHITECTURES, NAMES, Architecture, build
from elastic_tf.train.head.features import head_tensors

__all__ = ["ARCHITECTURES", "Architecture", "NAMES", "build", "head_tensors"]
