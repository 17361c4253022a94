"""Which steps are light, and how long they take."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_tf.budget.light import LightSteps


def offered() -> LightSteps:
    steps = LightSteps()
    steps.offer(np.array([False, True]), 0.4, 0.8)
    return steps


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 3])
def test_share_is_kept(share: float, count: int) -> None:
    steps = offered()
    turns = [steps.turn(share, count) for _ in range(1000)]
    assert np.mean(turns) == pytest.approx(share, abs=0.01)


def test_light_steps_come_in_runs() -> None:
    steps = offered()
    turns = np.array([steps.turn(0.3, 1) for _ in range(1000)])
    changes = np.count_nonzero(np.diff(turns))
    assert changes <= 2 * 300 / 4 + 2


def test_seconds_are_predicted_until_they_are_measured() -> None:
    steps = offered()
    assert steps.seconds(2.0) == 1.0
    steps.step(9.0, 1, traced=True)
    assert steps.seconds(2.0) == 1.0
    for seconds in (1.2, 1.2, 1.2, 12.0):
        steps.step(seconds, 1, traced=False)
    assert steps.seconds(2.0) == pytest.approx((3 * 1.2 + 3 * 1.2) / 4)  # a stray one is not 12
    assert steps.made == 5
    assert not steps.is_known
    for _ in range(6):
        steps.step(1.2, 1, traced=False)
    assert steps.is_known


def test_the_same_mask_offered_again_keeps_what_is_known() -> None:
    steps = offered()
    steps.step(1.4, 1, traced=False)
    steps.offer(np.array([False, True]), 0.4, 0.9)
    assert (steps.seconds(2.0), steps.made) == (1.4, 0)
    steps.offer(np.array([True, False]), 0.4, 1.0)
    assert steps.seconds(2.0) == pytest.approx(0.8)
    steps.offer(None, 1.0, 1.0)
    assert steps.mask is None
