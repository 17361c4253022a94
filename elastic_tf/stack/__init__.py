"""The seam to TensorFlow and Keras: nothing above asks which Keras it is.

What differs between Keras 2 and Keras 3 is a function with two answers. `tensorflow` has what is
taken from inside TensorFlow. A *variable* is a `tf.Variable` everywhere above: with Keras 3 the one
inside Keras's own, which `raw` takes out.
"""

from elastic_tf.stack.fit import *  # noqa: F403
from elastic_tf.stack.models import *  # noqa: F403
from elastic_tf.stack.tensorflow import *  # noqa: F403  # noqa: F403
from elastic_tf.stack.updates import *  # noqa: F403
