"""Random trainings against a tape and an optimizer for each tensor; and those that once failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import kinds
from fuzzing.case import At, Case, check
from fuzzing.draw import FEATURES, draw

RUN = Path(__file__).with_name("run.py")
SEEDS = range(4)

ONCE_FAILED = {
    "a plan set in a partial execution": Case(
        steps_per_execution=2, epochs=4, events=(At(0, 2, "plan last 2"),)
    ),
    "narrow, wide, narrow": Case(
        path="samples",
        samples=8,
        epochs=4,
        story=("plan last 2", "fit"),
        events=(At(1, -1, "plan all"), At(2, -1, "plan last 2")),
    ),
    "a ratio that rises and falls": Case(
        path="samples",
        samples=8,
        epochs=4,
        rhos=(0.4, 1.0, 1.0, 0.4),
        story=("plan last 2", "fit"),
    ),
    "weights that are set": Case(
        path="samples", story=("plan last 2", "fit"), events=(At(1, -1, "set"), At(1, 1, "scale 0"))
    ),
    "weights that are loaded": Case(
        path="samples", story=("plan last 2", "fit"), events=(At(1, -1, "load"),)
    ),
    "back after NaN": Case(
        path="samples",
        epochs=3,
        rhos=(0.5,),
        backup=0,
        story=("plan all", "fit"),
        events=(At(1, 1, "plan last 2"), At(1, 1, "cache"), At(1, 2, "nan")),
    ),
    "a head without bias": Case(loss="sparse", bias=False, story=("solve", "fit")),
    "views of which nothing is kept": Case(
        path="samples0", samples=8, views=2, epochs=4, solve=True, story=("plan last 2", "fit")
    ),
    "an average of a solved head": Case(
        path="samples", options=("ema",), solve=True, story=("plan last 2", "fit")
    ),
    "an average of a head that was trained before": Case(
        loss="sparse", options=("ema",), samples=8, story=("fit", "solve", "fit")
    ),
    "an average that begins late": Case(options=("ema",), events=(At(0, -1, "scale 0"),)),
    "an average of a plan without a step": Case(
        options=("ema",),
        story=("fit", "plan last 2", "fit"),
        epochs=1,
        events=(At(0, 1, "plan all", 1), At(0, 1, "plan last 2", 1), At(0, 0, "scale 0", 1)),
    ),
    "counts in a .keras file": Case(
        optimizer="adam", epochs=1, story=("plan last 2", "fit", "save keras", "plan all", "fit")
    ),
    "counts in an .h5 file": Case(
        optimizer="adamw", epochs=1, story=("plan last 2", "fit", "save h5", "plan all", "fit")
    ),
    "fused Adam in a SavedModel": Case(
        optimizer="fused_adam", epochs=1, story=("plan last 2", "fit", "save tf", "fit")
    ),
    "a head of few samples": Case(model="conv", samples=8, story=("solve", "fit")),
    "a plan behind batches drawn ahead": Case(
        path="dataset", rhos=(0.5,), epochs=1, events=(At(0, 1, "plan last 1"),)
    ),
    "a head that was solved before a kill": Case(
        path="samples0", solve=True, rhos=(0.4,), backup=0, kill=(1, 0)
    ),
    "class weights of samples": Case(path="samples", loss="sparse", weights="class"),
    "averages after a kill": Case(
        optimizer="adam", options=("ema",), rhos=(0.4, 1.0), backup=0, kill=(1, 1)
    ),
    "two threads": Case(threads=True, options=("ema",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE_FAILED)
def test_what_once_failed_trains_as_the_reference(name):
    formats = {item[5:] for item in ONCE_FAILED[name].story if item.startswith("save ")}
    if not formats <= {*kinds.FORMATS}:
        pytest.skip(f"Keras 3 does not go on training from {formats}")
    check(ONCE_FAILED[name])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_training_is_that_of_the_reference(seed):
    check(draw(seed))


@pytest.mark.hours
@pytest.mark.parametrize("feature", FEATURES)
def test_random_trainings_with_a_feature_are_those_of_the_reference(feature):
    command = [sys.executable, str(RUN), "--seconds", "140", "--seed", "1000", "--only", feature]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
