"""How good and how fast the selector is, and the paper's recurrence beside it.

First random timing tables of many kinds and sizes, against the best that the mixed-integer solver
finds in two seconds; beyond 214 tensors that is too little to compare with. Then one measured
profile: the paper's recurrence at resolutions from 100 to 10,000 against the selector (the paper's
Figures 13a and 13b).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from instances import instance
from measuring import fresh, noise
from mixed_integer import optimum
from paper_selection import paper_selection

import elastic_tf as et
from elastic_tf.files import format_table

KINDS = ("chain", "residual", "towers")
# tensors: instances, and how many of them the mixed-integer program is tried on
SIZES = {27: (40, 10), 81: (40, 10), 214: (60, 10), 500: (20, 0), 2000: (20, 0)}
REFERENCE_SECONDS = 2.0

MODEL, PIXELS = "resnet50", 96
RHO = 0.5
RESOLUTIONS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
DRAWS = 3
_LESS = 0.0025  # of rho, step by step


def main() -> dict[str, Any]:
    """Measure, print three tables."""
    rows = [against_optimum(kind, count) for count in SIZES for kind in KINDS]
    print(format_table(rows, COLUMNS))
    profile = et.profile_model(fresh(MODEL, PIXELS), *noise(PIXELS), repeats=5)
    sweep = against_paper(profile)
    print(f"\n{MODEL}, {profile.count} tensors, rho={RHO}: the paper's recurrence and the selector")
    print(format_table(sweep, SWEEP_COLUMNS))
    told = {"model": MODEL, "tensors": profile.count, "sets": len(profile.conditions[1])}
    told |= {"t_forward": profile.t_forward, "t_full": profile.t_full}
    return {"instances": rows, "resolutions": sweep, "profile": told}


def against_optimum(kind: str, count: int) -> dict[str, Any]:
    """One line: quality and seconds over random instances of one kind and size."""
    instances, references = SIZES[count]
    seconds, gaps, ratios = [], [], []
    for seed in range(instances):
        importance, table, rho = instance(kind, count, seed)
        started = time.perf_counter()
        selection = et.select_tensors(importance, table, rho)
        seconds.append(time.perf_counter() - started)
        gaps.append(selection.gap)
        reached = importance[selection.mask].clip(0.0).sum()
        if seed < references:
            best = optimum(importance, table, rho, seconds=REFERENCE_SECONDS, gap=1e-5)
            if np.isfinite(best):
                ratios.append(reached / best)
    middle, tail, longest = np.quantile(1e3 * np.array(seconds), (0.5, 0.9, 1.0))
    return {
        "kind": kind,
        "count": count,
        "instances": instances,
        "references": len(ratios),
        "worst": min(ratios, default=None),
        "median": float(np.median(ratios)) if ratios else None,
        "gap_median": float(np.median(gaps)),
        "gap_worst": max(gaps),
        "milliseconds_median": middle,
        "milliseconds_90": tail,
        "milliseconds_worst": longest,
    }


def against_paper(
    profile: et.TimingProfile, resolutions: Sequence[int] = RESOLUTIONS
) -> list[dict[str, Any]]:
    """A line for each resolution: means over some draws of importance."""
    # Positive, or the recurrence would select what does harm.
    draws = np.random.default_rng(1).exponential(size=(DRAWS, profile.count))
    ours = [et.select_tensors(draw, profile, RHO) for draw in draws]
    rows = []
    for resolution in resolutions:
        found, kept, seconds = [], [], []
        for draw in draws:
            started = time.perf_counter()
            found.append(paper_selection(draw, profile, RHO, resolution))
            seconds.append(time.perf_counter() - started)
            kept.append(within_budget(draw, profile, resolution))
        times = [profile.step_time(mask) / profile.t_full for mask in found]
        rows.append(
            {
                "resolution": resolution,
                "importance": relative(draws, found, ours),
                "achieved": float(np.mean(times)),
                "over_budget": sum(ratio > RHO for ratio in times),
                "importance_within": relative(draws, kept, ours),
                "milliseconds": 1e3 * float(np.median(seconds)),
                # no resolution: the same in each line
                "our_importance": 1.0,
                "our_achieved": float(np.mean([one.time for one in ours])) / profile.t_full,
                "our_milliseconds": 1e3 * float(np.median([one.solve_seconds for one in ours])),
            }
        )
    return rows


def within_budget(draw: np.ndarray, profile: et.TimingProfile, resolution: int) -> np.ndarray:
    """What the recurrence selects when it is given less, as little less as keeps the budget."""
    for lower in np.arange(0.0, RHO, _LESS):
        mask = paper_selection(draw, profile, RHO - lower, resolution)
        if profile.step_time(mask) <= RHO * profile.t_full:
            return mask
    return np.zeros(profile.count, bool)


def relative(draws: np.ndarray, masks: list[np.ndarray], ours: list[et.Selection]) -> float:
    """Mean importance reached, 1 for the best within the budget."""
    reached = [draw[mask].sum() / one.importance for draw, mask, one in zip(draws, masks, ours)]
    return float(np.mean(reached))


COLUMNS = (
    "kind count:d instances:d references:d worst:.5f median:.5f gap_median:.1e gap_worst:.1e "
    "milliseconds_median:.1f milliseconds_90:.1f milliseconds_worst:.1f"
).split()
SWEEP_COLUMNS = (
    "resolution:d importance:.4f achieved:.4f over_budget:d importance_within:.4f "
    "milliseconds:.1f our_achieved:.4f our_milliseconds:.1f"
).split()
