"""Methods of other papers that change the model; `--method experiments/related:tinytl` takes one.

In: a functional Keras model. Out: the model that the method trains in its place. They stand outside
of the package, as a method of one's own does.
"""

from __future__ import annotations

from related import prunetrain, tinytl

METHODS = (*tinytl.METHODS, *prunetrain.METHODS)
