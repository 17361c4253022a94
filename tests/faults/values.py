"""Values that are no numbers, clocks that jump, devices that throttle, probes that raise."""

from __future__ import annotations

import json
import random
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import timed
from clocks import Device, table
from faults.children import Trial, run, start, whole
from interrupted import EPOCHS, STEPS, arrays, train
from networks import crossentropy

import elastic_tf as et

SPOILED = ("NaN in the loss", "infinity in the loss", "NaN in the gradients alone")
POLICIES = ("restore", "skip", "stop", "ignore")


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Try them all, each a hundredth as often as `kills` says, and at least once."""
    times = max(kills // 100, 1)
    for policy in POLICIES:
        yield _spoiled(policy, times, rng)
    for name, trial in _TIMED.items():
        yield _counted(name, 2 * times, rng, trial)
    usual = whole(options=_broken_probe)

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        after = (rng.uniform(0.3, 1.2) * usual.seconds, signal.SIGKILL)
        return start(folder, out, after=after, options=_broken_probe)

    yield Trial("probe that raises in mid-training, kill -9", usual.outcome, begin).row(
        times, jobs=jobs, rng=rng
    )


def _counted(
    name: str, times: int, rng: random.Random, trial: Callable[[random.Random], str]
) -> dict[str, Any]:
    """A line of the table, of trials in a process of their own that each say what came out."""
    seeds = [rng.random() for _ in range(times)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found")

        def work() -> None:
            found = []
            for seed in seeds:
                tf.keras.backend.clear_session()
                found.append(trial(random.Random(seed)))
            path.write_text(json.dumps(found))

        code = run(work)
        if code:
            raise RuntimeError(f"{name}: the process ended with {code}.")
        found = json.loads(path.read_text())
    outcomes = {one: found.count(one) for one in sorted(set(found))}
    text = "; ".join(f"{count} times {one}" for one, count in outcomes.items())
    lost = {"restore": "steps since the last backup", "skip": "the spoiled step"}
    return {
        "fault": name,
        "tried": times,
        "outcome": text,
        "lost": lost.get(name.split("nan=")[-1], "nothing"),
        "as_expected": not any("not as" in one for one in outcomes),
    }


def _spoiled(policy: str, times: int, rng: random.Random) -> dict[str, Any]:
    """Steps that spoil loss or weights, in trainings with one policy."""
    kinds = iter(SPOILED * times)

    def trial(rng: random.Random) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return _with(policy, SPOILED.index(next(kinds)) + 1, Path(folder), rng)

    return _counted(f"NaN or infinity in a step, nan={policy}", 3 * times, rng, trial)


class Spoil(tf.keras.callbacks.Callback):
    """Spoils one step; the loss of `spoiling` looks at `kind`."""

    def __init__(self, kind: int, at: tuple[int, int]) -> None:
        super().__init__()
        self.kind = tf.Variable(0, trainable=False)
        self._chosen, self._at, self._epoch = kind, at, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.kind.assign(self._chosen if (self._epoch, batch) == self._at else 0)


def _with(policy: str, kind: int, folder: Path, rng: random.Random) -> str:
    """What a training comes to in which one step is spoiled, in a word."""
    at = (rng.randint(1, EPOCHS - 1), rng.randint(0, STEPS - 1))
    spoil = Spoil(kind, at)
    usual = crossentropy()

    def loss(y_true: Any, y_pred: Any) -> Any:
        found = usual(y_true, y_pred)
        apart = y_pred - tf.stop_gradient(y_pred)
        root = tf.sqrt(tf.reduce_sum(tf.square(apart)))  # nought, but its gradient is 0 / 0
        return tf.switch_case(
            spoil.kind.read_value(),
            [
                lambda: found,
                lambda: found * np.float32(np.nan),
                lambda: found * np.float32(np.inf),
                lambda: found + root,
            ],
        )

    options = {"importance": et.importance.weight_magnitude, "loss": loss, "nan": policy}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            outcome = train(folder, first=[spoil], **options)
        except FloatingPointError as error:
            is_named = "must be finite. Received: " in str(error)
            return (
                "an error that says where" if is_named and policy == "stop" else f"not as: {error}"
            )
    said = " ".join(str(one.message) for one in caught)
    rate = float(spoil.model.optimizer.learning_rate)
    is_finite = all(np.isfinite(weight).all() for weight in spoil.model.get_weights())
    steps = int(spoil.model.optimizer.iterations)
    if policy == "restore" and is_finite and rate == np.float32(0.005) and "go back to" in said:
        return "back to the last backup, half the learning rate, to the end"
    if policy == "skip" and is_finite and steps == EPOCHS * STEPS - 1 and "is left out" in said:
        return "the step is left out, to the end"
    if policy == "ignore" and not is_finite and not np.isfinite(outcome["history"]["loss"][-1]):
        return "to the end without numbers"
    return f"not as expected: {is_finite=} {rate=} {steps=} {said!r}"


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


_TIMED = {
    "clock jumps an hour back": lambda rng: _ratio_kept(rng, -3600.0),
    "clock jumps an hour on": lambda rng: _ratio_kept(rng, 3600.0),
    "clock jumps an hour back, with a deadline": _deadline_back,
    "clock jumps an hour on, with a deadline": _deadline_forward,
    "device throttles (simulated)": _throttled_ratio,
    "device throttles (simulated), with a deadline": _throttled_deadline,
}


def _broken_probe() -> dict[str, Any]:
    """A probe whose third batch cannot be read; it is drawn for the second selection."""
    x, y = arrays()
    x[10] = np.nan

    def checked(features: Any, label: Any) -> Any:
        return tf.debugging.check_numerics(features, "a damaged sample"), label

    probe = tf.data.Dataset.from_tensor_slices((x, y)).map(checked).batch(4)
    return {"probe": probe, "importance": et.importance.weight_magnitude, "interval": 1}
