"""What the judgement of importance rests on: masks of equal cost."""

import dataclasses

import numpy as np
from instances import instance
from mask_trials import RHO, masks_of_equal_cost


def test_masks_hold_what_is_required_and_cost_the_same() -> None:
    _, table, _ = instance("residual", 80, 0)
    table = dataclasses.replace(table, t_forward=0.3 * table.t_full)
    required = np.arange(table.count) >= table.count - 2
    masks = masks_of_equal_cost(table, required, 12, np.random.default_rng(0))
    assert len({mask.tobytes() for mask in masks}) == 12
    for mask in masks:
        assert mask[required].all()
        assert 0.98 * RHO <= table.step_time(mask) / table.t_full <= RHO
