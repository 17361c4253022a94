"""Images to train on: class folders, arrays, TensorFlow Datasets, handwritten digits.

In: a folder, a file, arrays or a name. Out: an `ImageData` with batches for training, validation
and test. Pixels are 0 to 255; the models of `zoo` bring their own preprocessing.
"""

from elastic_tf.data.datasets import arrays, from_arrays, image_folder
from elastic_tf.data.handwriting import Labelled, Shift, digits
from elastic_tf.data.pipelines import ImageData

__all__ = ["ImageData", "Labelled", "Shift", "arrays", "digits", "from_arrays", "image_folder"]
