"""The methods that elastic training is compared with, and itself, by name."""

from __future__ import annotations

from elastic_tf import arguments
from elastic_tf.baselines import fixed, policies
from elastic_tf.baselines.method import Method, Task
from elastic_tf.baselines.prunetrain import model
from elastic_tf.baselines.tinytl import training

__all__ = ["METHODS", "NAMES", "Method", "Task", "get"]

#: Every method by its name.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (*fixed.METHODS, *training.METHODS, *model.METHODS, *policies.METHODS)
}
#: Names that `get` knows.
NAMES = tuple(METHODS)


def get(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: there is none.
    """
    return METHODS[arguments.choice("name", name, NAMES)]
