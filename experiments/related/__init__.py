"""Other papers, reproduced outside of the package, as a method of one's own stands.

`--method experiments/related:tinytl` takes one that changes the model. In: a functional Keras
model. Out: the model that the method trains in its place. `nntrainer` plans memory.
"""

from __future__ import annotations

from related import prunetrain, tinytl

METHODS = (*tinytl.METHODS, *prunetrain.METHODS)
