"""Image classifiers to adapt: a backbone with its preprocessing inside, and a new head."""

from elastic_tf.head.features import head_tensors
from elastic_tf.zoo.models import ARCHITECTURES, NAMES, Architecture, build

__all__ = ["ARCHITECTURES", "Architecture", "NAMES", "build", "head_tensors"]
