"""The functions of `elastic_tf.plots` with calls that are right; see `public_call`."""

from __future__ import annotations

import hostile_values as kinds
import numpy as np
from public_call import Call, table

from elastic_tf import plots
from elastic_tf.plots import style

CURVES = {"full": ([1.0, 2.0], [0.1, 0.2]), "elastic": ([1.0], [0.3])}
ROWS = [{"method": "full", "mean": 0.5, "half_width": 0.1, "seconds": 3.0, "accuracies": [0.5]}]
TABLES = ("equal_epochs", "equal_seconds")
TITLE = {"title": kinds.text}
AXES = {"x": kinds.text, "y": kinds.text, **TITLE}
WORDS = {"x": "x", "y": "y", "title": "t"}
MASKS = [np.array([True, False, True]), np.array([False, False, True])]


def figure() -> plots.Picture:
    return style.picture(1.0, 1.0)


CALLS = (
    Call(
        "plots.accuracy_over_seconds",
        plots.accuracy_over_seconds,
        lambda _: {"curves": dict(CURVES), "title": "t"},
        {"curves": kinds.listed, **TITLE},
    ),
    Call(
        "plots.lines",
        plots.lines,
        lambda _: {"curves": dict(CURVES), "is_log": False, "is_whole": False, **WORDS},
        {"curves": kinds.listed, "is_log": kinds.flag, "is_whole": kinds.flag, **AXES},
    ),
    Call(
        "plots.bars",
        plots.bars,
        lambda _: {"groups": {"g": {"a": 1.0}}, "notes": {"g": {"a": "n"}}, "y": "y", "title": "t"},
        {"groups": kinds.listed, "notes": kinds.listed, "y": kinds.text, **TITLE},
        also={"groups": ("notes",)},
    ),
    Call(
        "plots.agreement",
        plots.agreement,
        lambda _: {"points": dict(CURVES), "within": 0.1, "is_log": False, **WORDS},
        {"points": kinds.listed, "within": kinds.number, "is_log": kinds.flag, **AXES},
    ),
    Call(
        "plots.accuracy_and_cost",
        plots.accuracy_and_cost,
        lambda _: {"rows": [dict(ROWS[0])], "cost": "seconds", "x": "x", "title": "t"},
        {"rows": kinds.listed, "cost": kinds.text, "x": kinds.text, **TITLE},
        also={"cost": ("rows",)},
    ),
    Call(
        "plots.accuracy_at_budgets",
        plots.accuracy_at_budgets,
        lambda _: {
            "tables": {name: [{**ROWS[0], "epochs": 3}] for name in TABLES},
            "title": "t",
        },
        {"tables": kinds.listed, **TITLE},
    ),
    Call(
        "plots.accuracy_intervals",
        plots.accuracy_intervals,
        lambda _: {"rows": [dict(ROWS[0])], "title": "t"},
        {"rows": kinds.listed, **TITLE},
    ),
    Call(
        "plots.method_panels",
        plots.method_panels,
        lambda _: {"rows": [dict(ROWS[0])], "panels": {"seconds": ("s", 1.0)}, "title": "t"},
        {"rows": kinds.listed, "panels": kinds.listed, **TITLE},
    ),
    Call(
        "plots.deadlines",
        plots.deadlines,
        lambda _: {
            "rows": [{"asked": 2.0, "taken": 1.0, "load": "none", "left_out": 0}],
            "title": "t",
        },
        {"rows": kinds.listed, **TITLE},
    ),
    Call(
        "plots.selection_map",
        plots.selection_map,
        lambda _: {
            "masks": list(MASKS),
            "names": ["a", "b", "c"],
            "ticks": [1, 2],
            "width": 5.0,
            "x": "x",
            "title": "t",
        },
        {
            "masks": kinds.listed,
            "names": kinds.listed,
            "ticks": kinds.listed,
            "width": kinds.number,
            "x": kinds.text,
            **TITLE,
        },
    ),
    Call(
        "plots.importance_map",
        plots.importance_map,
        lambda _: {"worths": [np.arange(3.0)] * 2, "names": ["a", "b", "c"], "title": "t"},
        {"worths": kinds.listed, "names": kinds.listed, **TITLE},
    ),
    Call(
        "plots.selection_bars",
        plots.selection_bars,
        lambda _: {"importance": np.arange(3.0), "mask": MASKS[0], "title": "t"},
        {"importance": kinds.numbers, "mask": kinds.mask, **TITLE},
        also={"importance": ("mask",)},
    ),
    Call(
        "plots.image_grid",
        plots.image_grid,
        lambda _: {"images": np.zeros((2, 4, 4, 1)), "labels": ["a", "b"], "title": "t"},
        {"images": kinds.samples, "labels": kinds.listed, **TITLE},
        also={"images": ("labels",)},
    ),
    Call(
        "plots.timing_bars",
        plots.timing_bars,
        lambda _: {"profile": table(), "title": "t"},
        {"profile": kinds.thing, **TITLE},
    ),
    Call(
        "plots.step_parts",
        plots.step_parts,
        lambda _: {"profiles": {"a": table()}, "title": "t"},
        {"profiles": kinds.listed, **TITLE},
    ),
    Call(
        "plots.cost_of_depth",
        plots.cost_of_depth,
        lambda _: {"profiles": {"a": table()}, "title": "t"},
        {"profiles": kinds.listed, **TITLE},
    ),
    Call(
        "plots.dependency_map",
        plots.dependency_map,
        lambda _: {"ops": [("op", [0, 1])], "names": ["a", "b"], "title": "t"},
        {"ops": kinds.listed, "names": kinds.listed, **TITLE},
        also={"names": ("ops",)},
    ),
    Call(
        "plots.save",
        plots.save,
        lambda d: {"figure": figure(), "path": d / "a.png"},
        {"figure": kinds.thing, "path": kinds.path},
    ),
    Call("plots.png", plots.png, lambda _: {"figure": figure()}, {"figure": kinds.thing}),
    Call("plots.pixels", plots.pixels, lambda _: {"figure": figure()}, {"figure": kinds.thing}),
)
