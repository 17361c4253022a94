"""Ways out of TensorFlow: files that train where it does not fit.

`rules` has the ops of a model and their gradients in built-in ops of LiteRT; `network` runs a
traced model by these rules; `litert` writes the folder, with the settings of the optimizer.
"""

from elastic_tf.app.export.litert import litert

__all__ = ["litert"]
