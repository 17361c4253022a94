"""The budget: numbers, schedules, and what rubbish gets."""

from __future__ import annotations

import numpy as np
import pytest
from instances import chain_table

from elastic_tf.budget import backward_budget, rho_at, step_budget


def test_number_holds_in_every_epoch() -> None:
    assert rho_at(0.5, 0) == rho_at(np.float32(0.5), 7) == 0.5
    assert rho_at(1, 0) == 1.0


def test_schedule_is_asked_for_each_epoch() -> None:
    assert [rho_at(lambda epoch: 0.9 - 0.1 * epoch, epoch) for epoch in (0, 3)] == [0.9, 0.6]


@pytest.mark.parametrize("value", [0.0, 1.7, -1.0, float("nan"), None, "half", True, 0.5j])
def test_schedule_that_returns_rubbish_is_named_with_epoch_and_value(value: object) -> None:
    with pytest.raises(ValueError, match=r"rho=.* from the schedule at epoch 4\.") as error:
        rho_at(lambda epoch: value, 4)
    assert f"rho={value!r}" in str(error.value)


@pytest.mark.parametrize("value", [0.0, 1.7, float("inf"), "half", None])
def test_number_outside_its_range_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"rho={value!r}"):
        rho_at(value, 0)


def test_budget_is_the_share_of_the_full_step() -> None:
    table = chain_table(np.ones(4), np.ones(4), 4.0)
    assert step_budget(0.5, table) == 6.0
    assert backward_budget(0.5, table) == 2.0
