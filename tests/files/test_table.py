"""Tables in plain text."""

import numpy as np

from elastic_tf.app.runs import COLUMNS
from elastic_tf.files import format_table


def test_table_aligns_numbers_and_shows_what_is_missing():
    rows = [
        {"method": "full", "accuracy": 0.8512, "training_seconds": 60.04},
        {"method": "elastic 0.5", "accuracy": np.float32(0.5), "seconds_per_step": 0.01234},
    ]
    assert format_table(rows, COLUMNS).splitlines() == [
        "method       accuracy  training s  s per step",
        "-" * 45,
        "full            85.1%        60.0           -",
        "elastic 0.5     50.0%           -      0.0123",
    ]
    assert format_table([{"a": 1}], ["a"]) == "a\n-\n1"
    assert format_table([], ["a", "b"]) == "a  b\n----"
