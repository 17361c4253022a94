"""Image classifiers to adapt: a backbone with its preprocessing inside, and a new head."""

from elastic_tf.zoo.models import ARCHITECTURES, NAMES, Architecture, build, head_tensors

__all__ = ["ARCHITECTURES", "Architecture", "NAMES", "build", "head_tensors"]
