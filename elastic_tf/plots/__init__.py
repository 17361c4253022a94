"""Pictures: drawn without a display, colour-blind safe, labelled with units.

In: profiles, masks, importances, and the rows that runs and experiments write. Out: figures, which
a notebook shows as they are; `save` writes one, `pixels` hands it to TensorBoard. `charts` has the
general forms, `timing`, `selections` and `results` follow the flow, `style` is what all share.
"""

from __future__ import annotations

from elastic_tf.plots.charts import agreement, bars, lines
from elastic_tf.plots.results import accuracy_at_budgets, deadlines, method_panels
from elastic_tf.plots.selections import image_grid, importance_map, selection_bars, selection_map
from elastic_tf.plots.style import METHODS, Picture, pixels, png, save
from elastic_tf.plots.timing import cost_of_depth, dependency_map, step_parts, timing_bars

__all__ = [
    "METHODS",
    "Picture",
    "accuracy_at_budgets",
    "agreement",
    "bars",
    "cost_of_depth",
    "deadlines",
    "dependency_map",
    "image_grid",
    "importance_map",
    "lines",
    "method_panels",
    "pixels",
    "png",
    "save",
    "selection_bars",
    "selection_map",
    "step_parts",
    "timing_bars",
]
