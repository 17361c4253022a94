"""What is measured of the steps of a run."""

from __future__ import annotations

import numpy as np
from networks import crossentropy, images, network

from elastic_tf.commands.training.measurement import counter, speed
from elastic_tf.costs.activations import activation_bytes
from elastic_tf.costs.flops import step_flops
from elastic_tf.model import ElasticModel


def compiled():
    model = ElasticModel.from_model(network())
    model.compile("sgd", crossentropy())
    return model


def test_counter_counts_zeros_like_images():
    model = compiled()
    x, y = images()
    mask = np.arange(len(model.tensors)) > 2
    count = counter(model, x.shape[1:], 10, None)
    assert count(mask).flops.total == step_flops(model, x[:10], y[:10], mask).total
    assert count(mask).activation_bytes == activation_bytes(model, (x[:10], y[:10]), mask) > 0
    assert count(mask) is count(mask.copy())


def test_speed_is_measured_against_another_full_model_and_leaves_nothing_behind():
    model, full = compiled(), compiled()
    x, y = images()
    before = [variable.numpy().tobytes() for variable in model.variables + full.variables]
    head = np.arange(len(model.tensors)) == len(model.tensors) - 1
    found = speed([(model, head), (model, head)], full, (x[:10], y[:10]), repeats=1)
    assert found.ratio > 0 and found.full_step_seconds > 0
    assert before == [variable.numpy().tobytes() for variable in model.variables + full.variables]
