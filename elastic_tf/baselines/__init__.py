"""The methods that elastic training is compared with, and itself, by name.

`fixed` train one set, `policies` select by importance, `tinytl` and `prunetrain` change the model.
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
    """The method of that name; a ValueError names those there are."""
    return METHODS[arguments.choice("name", name, NAMES)]
