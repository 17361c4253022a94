"""Plans: values that say how each tensor is trained."""

import copy
import json
import pickle

import numpy as np
import pytest

from elastic_tf.plan import EXACT, FROZEN, Plan, as_plan

MASK = np.array([False, True, True])


def test_plans_with_equal_modes_are_one_key():
    ones = {Plan.from_mask(MASK), Plan([FROZEN, EXACT, EXACT]), Plan.full(3)}
    assert len(ones) == 2
    assert Plan.full(3) != Plan.full(4)
    assert Plan.full(3) != "full"


@pytest.mark.parametrize(
    "again",
    [
        copy.deepcopy,
        lambda plan: pickle.loads(pickle.dumps(plan)),
        lambda plan: Plan.from_json(json.loads(json.dumps(plan.to_json()))),
    ],
    ids=["deepcopy", "pickle", "json"],
)
def test_a_copy_is_equal_and_cannot_be_changed(again):
    plan = again(Plan.from_mask(MASK))
    assert plan == Plan.from_mask(MASK)
    for array in (plan.modes, plan.mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    np.testing.assert_array_equal(plan.mask, MASK)


def test_changing_the_array_that_was_given_leaves_the_plan_alone():
    modes = np.array([0, 1], np.int8)
    plan = Plan(modes)
    modes[0] = 1
    assert plan == Plan([0, 1])
    assert len(plan) == 2


@pytest.mark.parametrize(
    ("modes", "received"),
    [
        ([0, 3], "3"),
        ([], "shape \\(0,\\)"),
        ([[1]], "shape \\(1, 1\\)"),
        ([True], "bool"),
        (1, "1"),
    ],
)
def test_modes_that_are_none_are_refused(modes, received):
    with pytest.raises(ValueError, match=f"Received.*{received}"):
        Plan(modes)


def test_a_mask_means_exact_and_frozen():
    assert as_plan(MASK, 3) == Plan([0, 1, 1])
    assert as_plan(MASK.tolist(), 3) == as_plan(as_plan(MASK, 3), 3)


@pytest.mark.parametrize(
    ("value", "received"),
    [
        (Plan.full(2), "one for 2"),
        (np.ones(2, bool), "shape \\(2,\\)"),
        (np.array([0, 1, 1]), "int64"),
        (np.array([[True]]), "shape \\(1, 1\\)"),
    ],
)
def test_a_plan_of_other_tensors_is_refused(value, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        as_plan(value, 3)


@pytest.mark.parametrize("value", [[0, 1], {"mask": [1]}, {"modes": [9]}])
def test_json_that_is_no_plan_is_refused(value):
    with pytest.raises(ValueError, match="Received"):
        Plan.from_json(value)
