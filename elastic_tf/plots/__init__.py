"""Pictures: drawn without a display, colour-blind safe, labelled with units.

Every function returns a figure, which a notebook shows as it is; `save` writes one.
"""

from __future__ import annotations

from elastic_tf.arguments import extra

with extra("plots"):
    from elastic_tf.plots.charts import accuracy_at_budgets, agreement, bars, confusion, lines
    from elastic_tf.plots.selections import image_grid, importance_map, selection_map
    from elastic_tf.plots.steps import cost_of_depth, memory_map, timing_bars
    from elastic_tf.plots.style import METHODS, Picture, png, save

__all__ = [
    "METHODS",
    "Picture",
    "accuracy_at_budgets",
    "agreement",
    "bars",
    "confusion",
    "cost_of_depth",
    "image_grid",
    "importance_map",
    "lines",
    "memory_map",
    "png",
    "save",
    "selection_map",
    "timing_bars",
]
