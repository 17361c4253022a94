"""The table of a training's selections."""

import dataclasses

import numpy as np
import pytest

from elastic_tf.choose import records
from elastic_tf.choose.selection import select_tensors
from elastic_tf.timing.profile import TimingProfile


def record(predicted: float, achieved: float | None) -> records.SelectionRecord:
    profile = TimingProfile.from_chain(t_dw=[1.0] * 5, t_dy=[1.0] * 5, t_forward=5.0)
    selection = select_tensors(np.ones(5), profile, 0.7)
    made = records.SelectionRecord(0, 0.7, selection, np.ones(5), predicted, 0.0, 0.0)
    return dataclasses.replace(made, achieved_ratio=achieved)


@pytest.mark.parametrize(
    ("made", "advised"),
    [
        ([(0.479, 0.876)], True),
        ([(0.479, 0.876), (0.3, None)], True),
        ([(0.479, 0.876), (0.4, 0.5)], False),
        ([(0.479, 0.6)], False),
        ([(0.479, 0.3)], False),
        ([(0.479, None)], False),
        ([(0.96, 1.02)], False),
        ([], False),
    ],
)
def test_table_says_what_to_do_where_less_than_half_of_the_saving_is_achieved(made, advised):
    said = records.table([record(*ratios) for ratios in made])
    assert ("steps_per_execution" in said) == advised
    assert ("0.876 was achieved where 0.479 was predicted" in said) == advised
