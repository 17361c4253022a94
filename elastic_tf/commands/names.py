"""What the options name: models, methods, optimizers, data sets.

`--help` and what is refused of a command line need the names alone, and what they stand for loads
TensorFlow, which takes seconds: `elastic_tf.zoo`, `elastic_tf.baselines`, `elastic_tf.optimizers`,
`elastic_tf.data.tfds`. A name that stands there alone, or here alone, fails a test.
"""

from __future__ import annotations

MODELS = (
    "mobilenet",
    "mobilenet_v2",
    "resnet50",
    "vgg16",
    "efficientnet_v2b0",
    "vit_b16",
    "vit_ti16",
    "digits_resnet",
)
#: Whether a method keeps to a share of the step time, for which it needs a timing profile.
NEEDS_PROFILE = {
    "full": False,
    "traditional_tl": False,
    "bn_bias": False,
    "last_k": True,
    "tinytl": False,
    "prunetrain": False,
    "elastic": True,
    "elastic_weight": True,
    "elastic_grad": True,
    "random": True,
    "offline_optimal": True,
}
METHODS = tuple(NEEDS_PROFILE)
OPTIMIZERS = ("sgd", "sgdw", "adam")
DATA_SETS = ("caltech_birds2011", "oxford_iiit_pet", "stanford_dogs")
