from __future__ import annotations

import contextlib
import json
import re

import demo
import numpy as np
import pytest

import elastic_tf as et

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The demo in its short form: its directory and its rows."""
    out = tmp_path_factory.mktemp("demo")
    with open(out / "said.txt", "w") as said, contextlib.redirect_stdout(said):
        rows = demo.main(["--quick", "--out", str(out)])
    return out, rows


def test_demo_compares_full_and_elastic_training(finished):
    _, rows = finished
    assert [row["method"] for row in rows] == ["full", "elastic, rho=0.4"]
    for row in rows:
        assert min(row["training_seconds"], row["seconds_per_step"]) > 0
        # two epochs are enough to leave chance (10 %) behind; without them it is 3 %
        assert row["accuracy"] > 0.2


def test_demo_leaves_results_and_pictures(finished):
    out, rows = finished
    for name in ("accuracy.png", "selection.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    stored = json.loads((out / "result.json").read_text())
    assert stored["rows"] == rows


def test_demo_tells_each_epoch(finished):
    said = (finished[0] / "said.txt").read_text()
    told = re.findall(r"^epoch (\d), (\w+): [\d.]+%$", said, re.MULTILINE)
    assert told == [("1", "full"), ("2", "full"), ("1", "elastic"), ("2", "elastic")]


def test_demo_network_knows_the_clean_digits():
    x, y = (part[::4] for part in et.data.digits(image_size=demo.IMAGE_SIZE)[1])
    model = et.zoo.build(
        "digits_resnet", classes=10, input_size=demo.IMAGE_SIZE, weights=demo.WEIGHTS
    )
    assert np.mean(model.predict(x, verbose=0).argmax(axis=1) == y) > 0.98
