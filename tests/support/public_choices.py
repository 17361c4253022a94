"""The functions that weigh tensors and choose among them, each with a call that is right."""

from __future__ import annotations

from typing import Any

import hostile_values as kinds
import numpy as np
from public_call import (
    DATA,
    SPOKEN,
    Call,
    batch,
    head,
    is_mask,
    is_number,
    is_share,
    is_worth,
    model,
    probed,
    table,
    worth,
)

from elastic_tf.baselines import fixed
from elastic_tf.budget import ratio
from elastic_tf.files import ranges
from elastic_tf.importance import measures
from elastic_tf.selection import knapsack, selector


def is_selection(found: Any) -> bool:
    return found.mask.dtype == bool and found.mask.any() and found.time <= found.budget


CALLS = (
    Call(
        "selection.select_tensors",
        selector.select_tensors,
        lambda _: {
            "importance": worth(),
            "profile": table(),
            "rho": 0.7,
            "ticks": 1000,
            "required": worth() > 2.9,
        },
        {
            "importance": kinds.numbers,
            "profile": kinds.thing,
            "rho": kinds.number,
            "ticks": kinds.count,
            "required": kinds.mask,
        },
        holds=is_selection,
        also={"required": ("required tensors",)},
    ),
    Call(
        "selection.smallest_feasible_rho",
        selector.smallest_feasible_rho,
        lambda _: {"profile": table(), "importance": worth(), "required": worth() > 2.9},
        {"profile": kinds.thing, "importance": kinds.numbers, "required": kinds.mask},
        holds=is_share,
    ),
    Call(
        "selection.check_rho",
        selector.check_rho,
        lambda _: {"rho": 0.5, "where": " here"},
        {"rho": kinds.number, "where": kinds.text},
    ),
    Call(
        "knapsack.relax",
        knapsack.relax,
        lambda _: {"worth": np.arange(1.0, 5.0), "cost": np.ones(4), "room": 2.5},
        {"worth": kinds.numbers, "cost": kinds.numbers, "room": kinds.number},
        holds=lambda found: is_number(found.bound) and 0 <= found.whole <= len(found.order),
    ),
    Call(
        "knapsack.solve",
        knapsack.solve,
        lambda _: {
            "worth": np.arange(1.0, 5.0),
            "cost": np.ones(4),
            "room": 2.5,
            "floor": 0.0,
            "states": 100,
        },
        {
            "worth": kinds.numbers,
            "cost": kinds.numbers,
            "room": kinds.number,
            "floor": kinds.number,
            "states": kinds.count,
        },
        holds=lambda found: is_number(found.bound),
    ),
    Call(
        "importance.loss_decrease",
        measures.loss_decrease,
        lambda _: {
            **probed(),
            "gradient": "other",
            "gradient_data": batch(),
            "steps": 1,
            "micro_batch_size": 4,
        },
        {
            **DATA,
            "model": kinds.thing,
            "gradient": kinds.text,
            "gradient_data": kinds.listed,
            "steps": kinds.count,
            "micro_batch_size": kinds.count,
        },
        holds=is_worth,
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "importance.gradient_magnitude",
        measures.gradient_magnitude,
        lambda _: {**probed(), "micro_batch_size": 4},
        {**DATA, "model": kinds.thing, "micro_batch_size": kinds.count},
        holds=is_worth,
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "importance.weight_magnitude",
        measures.weight_magnitude,
        lambda _: {"model": model(), "x": batch()[0], "y": batch()[1]},
        {"model": kinds.thing, "x": kinds.samples, "y": kinds.samples},
        holds=is_worth,
    ),
    Call(
        "importance.random",
        measures.random,
        lambda _: {"model": model(), "x": batch()[0], "y": batch()[1], "seed": 1},
        {"model": kinds.thing, "x": kinds.samples, "y": kinds.samples, "seed": kinds.count},
        holds=is_worth,
    ),
    Call(
        "ranges.indices_to_ranges",
        ranges.indices_to_ranges,
        lambda _: {"indices": np.array([0, 2, 3])},
        {"indices": kinds.numbers},
    ),
    Call(
        "ranges.ranges_to_indices",
        ranges.ranges_to_indices,
        lambda _: {"ranges": [[0, 1]], "count": 4},
        {"ranges": kinds.listed, "count": kinds.count},
        also={"count": ("ranges",)},
    ),
    Call("ranges.to_ranges", ranges.to_ranges, lambda _: {"mask": head()}, {"mask": kinds.mask}),
    Call(
        "ranges.from_ranges",
        ranges.from_ranges,
        lambda _: {"ranges": [[0, 1]], "count": 4},
        {"ranges": kinds.listed, "count": kinds.count},
        holds=is_mask,
        also={"count": ("ranges",)},
    ),
    Call(
        "budget.rho_at",
        ratio.rho_at,
        lambda _: {"rho": 0.5, "epoch": 1},
        {"rho": kinds.number, "epoch": kinds.count},
        also={"rho": ("schedule",)},
        holds=is_share,
    ),
    Call(
        "budget.step_budget",
        ratio.step_budget,
        lambda _: {"rho": 0.5, "profile": table()},
        {"rho": kinds.number, "profile": kinds.thing},
    ),
    Call(
        "budget.backward_budget",
        ratio.backward_budget,
        lambda _: {"rho": 0.5, "profile": table()},
        {"rho": kinds.number, "profile": kinds.thing},
    ),
    Call("budget.doubt", ratio.doubt, lambda _: {"profile": table()}, {"profile": kinds.thing}),
    Call(
        "budget.rho_for_deadline",
        ratio.rho_for_deadline,
        lambda _: {
            "seconds": 10.0,
            "steps": 10,
            "full_step_seconds": 1.0,
            "other_seconds": 1.0,
            "smallest": 0.1,
        },
        {
            "seconds": kinds.number,
            "steps": kinds.count,
            "full_step_seconds": kinds.number,
            "other_seconds": kinds.number,
            "smallest": kinds.number,
        },
        holds=is_share,
        also={name: ("deadline",) for name in ("seconds", "other_seconds", "full_step_seconds")},
    ),
    *(
        Call(
            f"baselines.fixed.{function.__name__}",
            function,
            lambda _: {"model": model()},
            {"model": kinds.thing},
            holds=is_mask,
        )
        for function in (fixed.bn_bias_tensors, fixed.bias_tensors, fixed.scale_tensors)
    ),
    Call(
        "baselines.fixed.last_tensors",
        fixed.last_tensors,
        lambda _: {"model": model(), "profile": table(), "rho": 0.8},
        {"model": kinds.thing, "profile": kinds.thing, "rho": kinds.number},
        holds=is_mask,
    ),
    Call(
        "baselines.fixed.is_among",
        fixed.is_among,
        lambda _: {"model": model(), "variables": []},
        {"model": kinds.thing, "variables": kinds.listed},
        holds=is_mask,
    ),
)
