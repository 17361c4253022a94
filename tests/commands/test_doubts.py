from __future__ import annotations

import re

import numpy as np
import pytest

from elastic_tf.commands.training import doubts
from elastic_tf.data import ImageData, from_arrays


def data(test: list[int], *, train: int = 40, share: float = 0.0, **options) -> ImageData:
    def images(labels):
        return np.zeros((len(labels), 4, 4, 3), np.uint8), np.array(labels)

    parts = images([k % 2 for k in range(train)]), images(test)
    return from_arrays(*parts, batch_size=4, validation_share=share, **options)


@pytest.mark.parametrize("options", [{}, {"augment": ("mixup",)}], ids=["numbers", "shares"])
def test_an_accuracy_that_is_not_above_chance_is_named(options):
    images = data([0, 1, 1], **options)
    (said,) = doubts.of_result(float(np.float32(2 / 3)), images)  # above 2/3 by rounding
    assert "right for 66.7% of the test images, the model for 66.7%" in said
    assert doubts.of_result(1.0, images) == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "Try other learning rates, more epochs, or pre-trained --weights."),
        ({"has_statistics": False}, "Without weights batch normalisation needs --bn-training."),
        ({"trained": 0.88}, "Its training images it knows, 88.0%: .* statistics lag behind"),
    ],
)
def test_what_to_try_follows_from_what_was_learned(options, advice):
    (said,) = doubts.of_result(0.5, data([0, 1]), **options)
    assert re.search(advice, said)
    assert ("--bn-training" in said) is ("has_statistics" in options)


@pytest.mark.parametrize(("count", "says"), [(29, True), (30, False), (0, False)])
def test_a_small_validation_part_is_named(count, says):
    train = 200
    images = data([0, 1], train=train, share=count / train)
    assert images.validation_count == count
    said = doubts.of_result(1.0, images)
    assert [
        ("has 29 images, fewer than 30, and each of them counts 3.4%" in one) for one in said
    ] == [True] * says
