"""What users do and give by mistake in the one call."""

import numpy as np
import pytest
import tensorflow as tf
from networks import L
from test_fine_tuning import CLASSES, COUNT, features, images

import elastic_tf as et
from elastic_tf.choose.budget import course


def test_an_interruption_leaves_the_best_weights(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    network, held_out = features("3 linear"), images(seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(course, "solve_head", interrupted)
        with pytest.raises(KeyboardInterrupt):
            et.finetune(network, images(), held_out, seconds=300, verbose=0)
    monkeypatch.setattr(course.Course, "on_epoch_end", interrupted)
    model = et.finetune(network, images(), held_out, seconds=300, verbose=0)
    head = et.ElasticModel.from_model(features("3 linear"))
    head.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    et.solve_head(head, et.Samples(*images(), batch_size=16))
    for one, other in zip(model.get_weights(), head.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert "Interrupted; the best weights so far are kept." in capsys.readouterr().out


def test_classes_without_samples_are_told_of():
    x, y = images()
    y[3] = 9
    with pytest.warns(
        UserWarning, match=r"none of \[3, 4, 5, 6, 7, 8\], and 1 of class 9, so .* 10 "
    ):
        assert (
            et.finetune(features(), (x, y), seconds=300, epochs=1, verbose=0).output_shape[1] == 10
        )


def test_few_samples_make_one_small_batch():
    x, y = images()
    with pytest.warns(UserWarning, match="Load pre-trained weights, or train everything"):
        model = et.finetune(features(), (x[:12], y[:12]), seconds=300, epochs=1, verbose=0)
    assert model.output_shape == (None, CLASSES)


@pytest.mark.parametrize(
    ("network", "x", "message"),
    [
        (lambda: tf.keras.Sequential([L.Dense(3)], name="mine"), None, "'mine', which has no weig"),
        (features, np.array(["a.jpg"] * COUNT), r"takes them. Received: texts, as b'a.jpg'"),
    ],
)
def test_what_cannot_be_fitted_is_named(network, x, message):
    with pytest.raises(ValueError, match=message):
        et.finetune(network(), (images()[0] if x is None else x, images()[1]), verbose=0)
