"""The methods that elastic training is compared with, and itself, by name.

In: a Keras model, and a `Task` with what a method may need to know. Out: the model to train, and
the callbacks of `fit` that choose what is trained. `fixed` trains one set, `policies` select by
importance, `tinytl` and `prunetrain` change the model by `graph`.
"""

from __future__ import annotations

from elastic_tf import arguments
from elastic_tf.baselines import fixed, policies, prunetrain, tinytl
from elastic_tf.baselines.method import Method, Task

__all__ = ["METHODS", "NAMES", "Method", "Task", "get"]

#: Every method by its name.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (*fixed.METHODS, *tinytl.METHODS, *prunetrain.METHODS, *policies.METHODS)
}
#: Names that `get` knows.
NAMES = tuple(METHODS)


def get(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: there is none.
    """
    return METHODS[arguments.choice("name", name, NAMES)]
