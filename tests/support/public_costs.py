"""The functions that measure what a step costs, each with a call that is right."""

from __future__ import annotations

from pathlib import Path

import hostile_values as kinds
import numpy as np
from public_call import (
    DATA,
    PATHS,
    SPOKEN,
    Call,
    N,
    batch,
    head,
    is_number,
    model,
    probed,
    table,
    worth,
)

from elastic_tf.costs import activations, flops
from elastic_tf.timing import profile, profiler, stopwatch
from elastic_tf.timing.profile import TimingProfile


def saved(folder: Path) -> Path:
    table().save(folder / "profile.json")
    return folder / "profile.json"


CALLS = (
    Call(
        "timing.TimingProfile.from_chain",
        TimingProfile.from_chain,
        lambda _: {"t_dw": np.ones(4), "t_dy": np.ones(4), "t_forward": 2.0},
        {"t_dw": kinds.numbers, "t_dy": kinds.numbers, "t_forward": kinds.number},
        holds=lambda found: is_number(found.t_full) and found.t_full > 0,
        also={"t_dw": ("times",), "t_dy": ("times",), "t_forward": ("times",)},
    ),
    Call(
        "timing.TimingProfile",
        TimingProfile,
        lambda _: {"t_forward": 5.0, "sets": table().sets, "count": N},
        {"t_forward": kinds.number, "count": kinds.count, "sets": kinds.listed},
        holds=lambda found: is_number(found.t_full) and found.t_dw.shape == (found.count,),
        also={"t_forward": ("times",), "count": ("sets",)},
    ),
    Call(
        "timing.TimingProfile.step_time",
        lambda mask: table().step_time(mask),
        lambda _: {"mask": worth() > 0},
        {"mask": kinds.mask},
        holds=lambda found: 5.0 <= found <= 25.0,
    ),
    Call(
        "timing.TimingProfile.save",
        lambda path: table().save(path),
        lambda d: {"path": d / "p"},
        PATHS,
    ),
    Call("timing.TimingProfile.load", TimingProfile.load, lambda d: {"path": saved(d)}, PATHS),
    Call(
        "timing.TimingProfile.check",
        lambda **given: table().check(**given),
        lambda _: {"model": model(), "batch_size": 4, "input_shape": [(6, 6, 2)]},
        {"model": kinds.thing, "batch_size": kinds.count, "input_shape": kinds.listed},
    ),
    Call(
        "timing.TimingProfile.check_data",
        lambda **given: table().check_data(**given),
        lambda _: {"batch_size": 4, "input_shape": [(6, 6, 2)]},
        {"batch_size": kinds.count, "input_shape": kinds.listed},
    ),
    Call(
        "timing.tensor_specs",
        profile.tensor_specs,
        lambda _: {"model": model()},
        {"model": kinds.thing},
    ),
    Call(
        "timing.optimizer_name",
        profile.optimizer_name,
        lambda _: {"model": model()},
        {"model": kinds.thing},
    ),
    Call(
        "profiler.profile_model",
        profiler.profile_model,
        lambda _: {**probed(), "repeats": 1, "time_limit": 1.0, "calibrate": False},
        {
            **DATA,
            "model": kinds.thing,
            "repeats": kinds.count,
            "time_limit": kinds.number,
            "calibrate": kinds.flag,
        },
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "stopwatch.measure_ratios",
        stopwatch.measure_ratios,
        lambda _: {**probed(), "masks": [head()], "repeats": 1},
        {**DATA, "model": kinds.thing, "masks": kinds.listed, "repeats": kinds.count},
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "activations.activations",
        activations.activations,
        lambda _: {"model": model(), "data": batch(), "mask": head()},
        {"model": kinds.thing, "data": kinds.listed, "mask": kinds.mask},
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "activations.activation_bytes",
        activations.activation_bytes,
        lambda _: {"model": model(), "data": batch(), "mask": head()},
        {"model": kinds.thing, "data": kinds.listed, "mask": kinds.mask},
        holds=lambda found: found >= 0,
        also=SPOKEN,
        runs=True,
    ),
    Call(
        "flops.step_flops",
        flops.step_flops,
        lambda _: {**probed(), "mask": head()},
        {**DATA, "model": kinds.thing, "mask": kinds.mask},
        holds=lambda found: found.forward > 0,
        also=SPOKEN,
        runs=True,
    ),
)
