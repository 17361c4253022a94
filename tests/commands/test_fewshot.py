from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from elastic_tf.app.commands import fewshot

WORDS = "--model digits_resnet --input-size 16 --weights none --support 3".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four images to learn from and two to ask for, of two classes."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 2)):
        for k, name in enumerate(("bright", "dark")):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 120, (16, 16, 3)) + 120 * (1 - k)
                path = root / part / name / f"{index}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def test_what_is_reached_and_taken_is_said(folder, capsys):
    fewshot.main([*WORDS, "--data", str(folder), "--steps", "2", "--compute", "0.9"])
    said = capsys.readouterr().out
    for when in ("before", "after"):
        assert re.search(rf"^{when}: \d+\.\d% of 4 test images$", said, re.M)
    assert re.search(r"Trained \d of 6 tensors in .* an image at a time takes 0\.\d+ MiB", said)


def test_too_few_pictures_are_refused_before_anything_is_loaded(folder):
    with pytest.raises(ValueError, match=r"5 pictures in train/\. Received: 4 of 'bright'"):
        fewshot.main([*WORDS, "--data", str(folder), "--support", "5"])


def test_too_little_memory_is_refused(folder):
    with pytest.raises(ValueError, match="memory='1 KiB'"):
        fewshot.main([*WORDS, "--data", str(folder), "--memory", "1 KiB"])
