import numpy as np
import pytest

from elastic_tf.timing import step


def test_busy_rounds_are_measured_again(monkeypatch):
    disturbed = [1.0, 1.0, 9.0, 1.0, *[0.4] * 4]  # the first step of a kind does not count
    seconds = iter([*disturbed, *[*[1.0] * 4, *[0.4] * 4] * 20])
    monkeypatch.setattr(step, "seconds", lambda run, data: next(seconds))
    idle = [lambda data: 0.0] * 2
    steps = step.time_in_turn(idle, None, repeats=4)
    assert len(steps) >= 4 and (steps == [1e6, 0.4e6]).all()


@pytest.mark.parametrize(("repeats", "order"), [(1, "aabb"), (3, "aaaabbbb")])
def test_a_timed_step_follows_one_of_its_own_kind(monkeypatch, repeats, order):
    done = []
    monkeypatch.setattr(step, "seconds", lambda run, data: run(data) or 1.0)
    runs = [lambda data, name=name: done.append(name) for name in "ab"]
    steps = step.time_in_turn(runs, None, repeats=repeats)
    assert "".join(done) == order
    assert len(steps) == repeats


@pytest.mark.parametrize(("noise", "rounds"), [(0.0, 6), (0.3, 30)])
def test_rounds_end_once_the_ratios_are_certain(monkeypatch, noise, rounds):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(step, "seconds", lambda run, data: 1 + noise * rng.random())
    idle = [lambda data: 0.0] * 2
    assert len(step.time_in_turn(idle, None, repeats=30, certain=0.02)) == rounds


def test_ratio_uncertainty_is_the_interval_of_a_median():
    rng = np.random.default_rng(0)
    medians, claimed = [], []
    for _ in range(400):
        steps = np.stack([np.ones(40), rng.normal(0.4, 0.02, 40)], axis=1)
        medians.append(np.median(steps[:, 1]))
        claimed.append(step.ratio_uncertainty(steps))
    inside = np.abs(np.array(medians) - 0.4) < np.median(claimed)
    assert 0.9 < inside.mean() < 0.99
