from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing.case import check
from fuzzing.draw import FEATURES, draw

RUN = Path(__file__).with_name("run.py")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_training_equals_the_reference(seed):
    check(draw(seed))


@pytest.mark.hours
@pytest.mark.parametrize("feature", FEATURES)
def test_training_equals_the_reference_for_minutes(feature):
    options = ["--seconds", "140", "--seed", "1000", "--only", feature]
    done = subprocess.run([sys.executable, RUN, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
