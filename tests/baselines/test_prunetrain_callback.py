from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import K, crossentropy, fit, images, network
from prunable import block, compiled, shrink

from elastic_tf import baselines
from elastic_tf.baselines.prunetrain import model as prunetrain
from elastic_tf.baselines.prunetrain.model import PruneTrainCallback


def test_training_removes_channels_parameters_and_operations():
    """Each layer is left with fewer; the lasso does it, no weight is touched by hand."""
    x, y = images()
    y = (x.mean(axis=(1, 2, 3)) > 1.0).astype(int)  # something to learn
    model = compiled(optimizer=K.SGD(0.03))
    callback = PruneTrainCallback(ratio=0.9, threshold=1e-2, interval=10, batch=(x[:8], y[:8]))
    history = fit(model, x=x, y=y, epochs=40, callbacks=[callback])
    first, last = callback.records[0], callback.records[-1]
    assert (first.epoch, first.removed, last.epoch) == (0, 0, 40)
    assert last.parameters == model.count_params() < 0.5 * first.parameters
    assert last.flops.total < 0.7 * first.flops.total
    assert sum(record.removed for record in callback.records) >= 5
    assert all(left <= first.channels[name] for name, left in last.channels.items())
    assert last.channels["head"] == first.channels["head"]
    assert history["loss"][-1] < history["loss"][0]


def test_records_tell_what_is_left():
    model = compiled()
    callback = PruneTrainCallback(interval=1)
    shrink(model.network)
    fit(model, epochs=2, callbacks=[callback])
    assert [record.epoch for record in callback.records] == [0, 1, 2]
    last = callback.records[-1]
    kernels = {layer.name: layer for layer in model.network.layers}
    for name, left in last.channels.items():
        assert left == kernels[name].kernel.shape[-1]
    assert last.flops is None and last.coefficient > 0 and last.seconds > 0
    lines = callback.summary().splitlines()
    assert len(lines) == 2 + 3 and "parameters" in lines[0]


def test_the_interval_counts_epochs():
    callback = PruneTrainCallback(interval=2)
    fit(compiled(), epochs=5, callbacks=[callback])
    assert [record.epoch for record in callback.records] == [0, 2, 4]


def test_the_lasso_ends_with_fit():
    model = compiled()
    fit(model, epochs=1, callbacks=[PruneTrainCallback()])
    plain = compiled()
    plain.set_weights(model.get_weights())
    x, y = map(tf.constant, images())
    loss = [each.gradients((x, y), each.trainable_variables)[0].loss for each in (model, plain)]
    np.testing.assert_array_equal(*loss)


def test_a_callback_can_be_used_again():
    callback = PruneTrainCallback(interval=1)
    for _ in range(2):
        fit(compiled(), epochs=1, callbacks=[callback])
        assert [record.epoch for record in callback.records] == [0, 1]


def test_a_line_is_printed_for_each_reconfiguration(capsys):
    fit(compiled(), epochs=1, callbacks=[PruneTrainCallback(interval=1, verbose=1)])
    assert "After 1 epochs: 0 channels removed" in capsys.readouterr().out


def test_callbacks_of_a_task_prune_at_its_interval():
    model = compiled()
    probe = tf.data.Dataset.from_tensors(tuple(part[:4] for part in images()))
    task = baselines.Task(model, interval=3, epochs=2, probe=probe)
    (callback,) = prunetrain.callbacks(task)
    fit(model, epochs=2, callbacks=[callback])
    assert [record.epoch for record in callback.records] == [0, 2]
    assert callback.records[-1].flops.total > 0


@pytest.mark.parametrize(
    "options, error, received",
    [
        ({"ratio": 0.0}, ValueError, "ratio=0.0"),
        ({"ratio": 1}, ValueError, "ratio=1"),
        ({"ratio": "much"}, ValueError, "ratio='much'"),
        ({"threshold": 0.0}, ValueError, "threshold=0.0"),
        ({"threshold": float("nan")}, ValueError, "threshold=nan"),
        ({"interval": 0}, ValueError, "interval=0"),
        ({"interval": 2.5}, ValueError, "interval=2.5"),
        ({"interval": True}, ValueError, "interval=True"),
        ({"batch": np.zeros(3)}, TypeError, "Received: ndarray"),
    ],
)
def test_rubbish_is_refused(options, error, received):
    with pytest.raises(error, match=received):
        PruneTrainCallback(**options)


def test_a_model_that_was_not_adapted_is_refused():
    model = network()
    model.compile("sgd", crossentropy())
    with pytest.raises(TypeError, match="Received: Functional"):
        fit(model, callbacks=[PruneTrainCallback()])


def test_a_loss_that_is_no_number_is_refused():
    model = prunetrain.adapt(block())
    model.compile("sgd", lambda y, logits: np.nan * tf.reduce_mean(logits, axis=-1))
    with pytest.raises(ValueError, match="coefficient=nan from ratio=0.2"):
        fit(model, callbacks=[PruneTrainCallback()])


def test_several_replicas_are_refused(monkeypatch):
    model = compiled()
    monkeypatch.setattr("elastic_tf.engine.replicas.count", lambda strategy: 2)
    callback = PruneTrainCallback()
    callback.set_model(model)
    with pytest.raises(ValueError, match="Received: 2 replicas"):
        callback.on_train_begin()
