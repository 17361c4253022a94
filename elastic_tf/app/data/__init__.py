"""Images to train on: class folders, arrays, TensorFlow Datasets, handwritten digits.

Pixels are 0 to 255; the models of `zoo` scale them themselves.
"""

from elastic_tf.app.data.arrays import Labelled, Shift, arrays, digits, from_arrays
from elastic_tf.app.data.folder import image_folder
from elastic_tf.app.data.pipelines import Batching, ImageData, augmentation
from elastic_tf.app.data.tfds import tfds_classes, tfds_images

__all__ = [
    "Batching",
    "ImageData",
    "Labelled",
    "Shift",
    "arrays",
    "augmentation",
    "digits",
    "from_arrays",
    "image_folder",
    "tfds_classes",
    "tfds_images",
]
