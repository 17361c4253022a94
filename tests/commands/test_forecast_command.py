from __future__ import annotations

import pytest

from elastic_tf.app.commands import forecast

WORDS = "--model digits_resnet --input-size 16 --batch-size 4 --epochs 2 --rho 0.6 --images"


def test_a_table_of_three_ways_is_printed(capsys):
    forecast.main([*WORDS.split(), "10"])
    titles, *lines = capsys.readouterr().out.splitlines()
    assert titles.split() == ["training", "tensors", "images", "epochs", "seconds", "MiB"]
    rows = {name: line.split() for line in lines for name in WAYS if line.startswith(name)}
    # two batches of four; both weights of the head, all of two blocks and the head
    assert rows["head alone"][2:5] == ["2", "8", "0"]
    assert rows["full"][1:4] == ["8", "16", "2"]
    assert rows["elastic, rho=0.6"][3:5] == ["16", "2"]


WAYS = ("head alone", "elastic, rho=0.6", "full")


def test_a_batch_of_more_than_the_images_is_refused():
    with pytest.raises(ValueError, match="`batch_size`.*Received: 4"):
        forecast.main([*WORDS.split(), "3"])
