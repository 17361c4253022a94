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
    """The demo in its short form, with smaller images: its directory and its rows."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch, open(out / "said.txt", "w") as said:
        patch.setattr(demo, "IMAGE_SIZE", 32)
        patch.setattr(demo, "WEIGHTS", demo.WEIGHTS.with_name("digits_resnet.h5"))
        with contextlib.redirect_stdout(said):
            rows = demo.main(["--quick", "--out", str(out)])
    return out, rows


def test_demo_compares_full_training_and_a_part_of_its_seconds_and_leaves_results(finished):
    out, rows = finished
    assert [row["method"] for row in rows] == ["full, 2 epochs", "finetune, half of it"]
    for row in rows:
        assert 0 < row["training_seconds"] < 60
        # two epochs are enough to leave chance (10 %) behind; without them it is 3 %
        assert row["accuracy"] > 0.2
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "result.json").read_text())["rows"] == rows
    said = (out / "said.txt").read_text()
    assert re.findall(r"^full, epoch (\d): [\d.]+%$", said, re.MULTILINE) == ["1", "2"]
    assert said.count("Seconds: start") == 1


def test_demo_network_knows_the_clean_digits():
    x, y = (part[::4] for part in et.data.digits(image_size=demo.IMAGE_SIZE)[1])
    model = et.zoo.build(
        "digits_resnet", classes=10, input_size=demo.IMAGE_SIZE, weights=demo.WEIGHTS
    )
    assert np.mean(model.predict(x, verbose=0).argmax(axis=1) == y) > 0.98
