"""Clocks that jump and devices that throttle, both simulated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import timed
from clocks import Device, table
from faults.children import counted


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Try each a fiftieth as often as `kills` says, and at least once."""
    for name, trial in TIMED.items():
        yield counted(name, max(kills // 50, 1), rng, trial)


class Jumping:
    """A clock that jumps once.

    Args:
        clock: what it shows before.
        at: seconds when it jumps.
        by: seconds it jumps by.
    """

    def __init__(self, clock: Callable[[], float], at: float, by: float) -> None:
        self._clock, self._at, self._by = clock, at, by

    def __call__(self) -> float:
        now = self._clock()
        return now + (self._by if now >= self._at else 0.0)


def _jump(rng: random.Random, by: float, **options: Any) -> tuple[Device, Any]:
    device = Device(table(), delivered=0.8, tracing=1.0)
    clock = Jumping(device.clock, rng.uniform(10.0, 120.0), by)
    return device, timed.run(device, clock=clock, **options)


def _ratio_kept(rng: random.Random, by: float) -> str:
    device, elastic = _jump(rng, by, control=0.3)
    achieved = device.step(elastic.selections[-1].mask)
    is_whole = int(elastic.model.optimizer.iterations) == timed.STEPS * timed.EPOCHS
    if is_whole and achieved <= 0.7 * 1.05:
        return "all steps are made, the ratio is kept"
    return f"not as expected: {is_whole=} {achieved=}"


def _deadline_back(rng: random.Random) -> str:
    device, _ = _jump(rng, -3600.0, deadline=200.0)
    if 0.95 * 200.0 <= device.clock.now <= 202.0:
        return "the deadline is kept"
    return f"not as expected: {device.clock.now=}"


def _deadline_forward(rng: random.Random) -> str:
    device, elastic = _jump(rng, 3600.0, deadline=200.0)
    if device.clock.now < 200.0 and elastic.model.stop_training:
        return "the time counts as passed: training stops and says so"
    return f"not as expected: {device.clock.now=}"


def _throttled(rng: random.Random, **options: Any) -> tuple[Device, Any]:
    device = Device(table(), delivered=0.8, tracing=1.0)
    speed = {f"from_{rng.randint(1, 3)}": rng.uniform(1.2, 1.5)}
    return device, timed.run(device, timed.Passing(device, **speed), **options)


def _throttled_ratio(rng: random.Random) -> str:
    device, elastic = _throttled(rng, control=0.3)
    achieved = device.step(elastic.selections[-1].mask) / device.speed
    return "the ratio is kept" if achieved <= 0.7 * 1.05 else f"not as expected: {achieved=}"


def _throttled_deadline(rng: random.Random) -> str:
    device, _ = _throttled(rng, deadline=220.0)
    if 0.95 * 220.0 <= device.clock.now <= 220.0:
        return "the deadline is kept"
    return f"not as expected: {device.clock.now=}"


TIMED = {
    "clock jumps an hour back": lambda rng: _ratio_kept(rng, -3600.0),
    "clock jumps an hour on": lambda rng: _ratio_kept(rng, 3600.0),
    "clock jumps an hour back, with a deadline": _deadline_back,
    "clock jumps an hour on, with a deadline": _deadline_forward,
    "device throttles (simulated)": _throttled_ratio,
    "device throttles (simulated), with a deadline": _throttled_deadline,
}
