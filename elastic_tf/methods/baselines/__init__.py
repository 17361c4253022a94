"""The methods that elastic training is compared with, and itself, by name.

`fixed` train one set, `policies` select by importance, `neurons` are those of another paper. Others
are taken from where they are:
"my_methods.py:mine" is the method "mine" among the `METHODS` of that file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from elastic_tf import arguments
from elastic_tf.methods.baselines import fixed, neurons, policies
from elastic_tf.methods.baselines.method import Method, Task

__all__ = ["METHODS", "NAMES", "Method", "Task", "get"]

#: Every method of the package by its name.
METHODS: dict[str, Method] = {
    one.name: one for one in (*fixed.METHODS, *policies.METHODS, *neurons.METHODS)
}
#: Names that `get` knows.
NAMES = tuple(METHODS)


def get(name: str) -> Method:
    """The method of that name; or of a file, package folder or module, as "FILE.py:NAME".

    What is imported for it finds what stands beside it, as a script does.

    Raises:
        ValueError: there is none of that name, or no such file, or none with `METHODS`.
    """
    if not isinstance(name, str) or ":" not in name:
        return METHODS[arguments.choice("name", name, NAMES)]
    where, _, own = name.rpartition(":")
    path = Path(where)
    if path.exists():
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        where = path.stem
    elif importlib.util.find_spec(where.partition(".")[0]) is None:
        raise ValueError(
            f"A method is NAME, FILE.py:NAME or MODULE:NAME. Received: {where!r}, which is no file "
            "and no module."
        )
    module = importlib.import_module(where)
    found = getattr(module, "METHODS", ())
    if not found or not all(isinstance(method, Method) for method in found):
        raise ValueError(
            "A file of methods must have METHODS, a list of et.baselines.Method. Received: "
            f"{found!r} in {module.__file__}."
        )
    methods = {method.name: method for method in found}
    return methods[arguments.choice("name", own, methods)]
