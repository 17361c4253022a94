"""The callback: when it selects, what it hands on, what it leaves behind."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from chosen import callback, dataset, elastic, favour, fit, table
from networks import CLASSES, IMAGE, images, values

from elastic_tf.callback import ElasticCallback


def test_callback_selects_at_the_start_and_after_every_interval():
    elastic_callback = callback()
    fit(elastic(), elastic_callback)
    assert [record.epoch for record in elastic_callback.selections] == [0, 2, 4]


def test_callback_selects_first_at_the_initial_epoch():
    elastic_callback = callback()
    elastic().fit(dataset(), initial_epoch=3, epochs=5, verbose=0, callbacks=[elastic_callback])
    assert [record.epoch for record in elastic_callback.selections] == [3]


def test_selections_stay_within_the_budget():
    elastic_callback = callback()
    fit(elastic(), elastic_callback)
    for record in elastic_callback.selections:
        assert record.mask.any()
        assert table().step_time(record.mask) <= 0.6 * table().t_full
        assert record.predicted_ratio == table().step_time(record.mask) / table().t_full


def test_selected_tensors_move_and_the_others_keep_every_bit():
    model = elastic()
    before = values(model.tensors)
    fit(model, callback(importance=favour(7, 8)), epochs=1)
    moved = [k for k, (a, b) in enumerate(zip(before, values(model.tensors))) if a != b]
    assert moved == [7, 8]


def test_tensor_that_left_comes_back():
    turns = iter([favour(8), favour(9), favour(8)])
    elastic_callback = callback(interval=1, importance=lambda model, x, y: next(turns)(model, x, y))
    fit(elastic(), elastic_callback, epochs=3)
    selected = [np.flatnonzero(record.mask).tolist() for record in elastic_callback.selections]
    assert selected == [[8], [9], [8]]


def test_schedule_gives_each_selection_its_rho():
    elastic_callback = callback(rho=lambda epoch: 0.4 + 0.1 * epoch)
    fit(elastic(), elastic_callback)
    assert [record.rho for record in elastic_callback.selections] == pytest.approx([0.4, 0.6, 0.8])


def test_each_selection_sees_a_fresh_probe():
    seen = []

    def watch(model, x, y):
        seen.append(np.asarray(x).tobytes())
        return np.ones(len(model.tensors))

    fit(elastic(), callback(importance=watch, probe_size=4, interval=1), epochs=3)
    assert len(set(seen)) == 3


def test_arrays_serve_as_a_probe():
    shapes = []

    def watch(model, x, y):
        shapes.append((x.shape, y.shape))
        return np.ones(len(model.tensors))

    fit(elastic(), callback(probe=images(), importance=watch, probe_size=6), epochs=1)
    assert shapes == [((6, *IMAGE), (6,))]


def test_required_tensors_are_always_trained():
    required = np.arange(10) == 9
    elastic_callback = callback(importance=favour(8), required=required)
    fit(elastic(), elastic_callback, epochs=1)
    assert elastic_callback.selections[0].mask[9]


def test_model_has_its_mask_back_after_training():
    model = elastic()
    fit(model, callback(), epochs=1)
    assert model.mask.all()


def test_trained_model_holds_on_to_nothing_of_the_callback():
    model, elastic_callback = elastic(), callback()
    fit(model, elastic_callback, epochs=1)
    course = weakref.ref(elastic_callback._course)
    del elastic_callback
    gc.collect()
    assert course() is None


def test_callback_can_be_used_again():
    elastic_callback = callback()
    fit(elastic(), elastic_callback, epochs=3)
    fit(elastic(), elastic_callback, epochs=1)
    assert [record.epoch for record in elastic_callback.selections] == [0]


def test_history_holds_the_ratios():
    elastic_callback = callback()
    history = fit(elastic(), elastic_callback, epochs=1).history
    assert history["rho"] == [0.6]
    assert history["predicted_ratio"] == [elastic_callback.selections[0].predicted_ratio]
    assert np.isnan(history["achieved_ratio"]).all()  # four steps: no full step was timed


@pytest.mark.filterwarnings("ignore:The machine is too busy")
def test_device_is_profiled_again_when_asked():
    model = elastic()
    elastic_callback = callback(reprofile_every=2, rho=1.0)
    fit(model, elastic_callback)
    assert [(p.epoch, p.traced) for p in elastic_callback.profiles] == [(2, True), (4, False)]
    assert all(p.seconds > 0 and p.profile.count == 10 for p in elastic_callback.profiles)
    last = elastic_callback.selections[-1]
    assert last.selection.budget == elastic_callback.profiles[-1].profile.t_full


@pytest.mark.filterwarnings("ignore:The machine is too busy")
def test_profiling_again_does_not_touch_the_training():
    def weights(**options):
        tf.keras.utils.set_random_seed(1)
        model = elastic()
        fit(model, callback(importance=favour(7, 8, 9), rho=1.0, **options), epochs=3)
        return values(model.variables)

    assert weights() == weights(reprofile_every=1)


def test_training_goes_on_with_the_last_selection_when_a_probe_fails():
    turns = iter([favour(8), None])

    def fail_later(model, x, y):
        function = next(turns)
        if function is None:
            raise ValueError("The loss on the probe must be finite. Received: loss=nan.")
        return function(model, x, y)

    elastic_callback = callback(importance=fail_later)
    with pytest.warns(UserWarning, match="Epoch 3 goes on with the selection of epoch 1: .*nan"):
        fit(elastic(), elastic_callback, epochs=3)
    assert len(elastic_callback.selections) == 1


def test_first_probe_that_fails_stops_the_training():
    x, y = images()
    nan_probe = tf.data.Dataset.from_tensor_slices((x * np.nan, y)).batch(4)
    elastic_callback = ElasticCallback(table(), 0.6, 2, nan_probe)
    with pytest.raises(ValueError, match="loss=nan"):
        fit(elastic(), elastic_callback, epochs=1)


def test_training_goes_on_when_what_matters_is_too_dear():
    turns = iter([favour(9), favour(0)])
    elastic_callback = callback(
        rho=0.45, interval=1, importance=lambda model, x, y: next(turns)(model, x, y)
    )
    with pytest.warns(UserWarning, match="goes on with the selection of epoch 1: The budget"):
        fit(elastic(), elastic_callback, epochs=2)
    assert [np.flatnonzero(r.mask).tolist() for r in elastic_callback.selections] == [[9]]


def test_importance_is_smoothed_over_selections():
    turns = iter([favour(8), favour(9)])
    elastic_callback = callback(
        smoothing=0.75, importance=lambda model, x, y: next(turns)(model, x, y)
    )
    fit(elastic(), elastic_callback, epochs=4)
    first, second = elastic_callback.selections
    assert (first.similarity, second.similarity) == (None, 0.0)
    np.testing.assert_allclose(second.importance[8:], [0.75, 0.25])


def test_gradient_may_come_from_validation_data():
    x, y = images(seed=1)
    elastic_callback = callback(gradient_probe=(x, y), rho=0.7)
    fit(elastic(), elastic_callback, epochs=1)
    one, two = elastic_callback.selections[0], callback(rho=0.7)
    fit(elastic(), two, epochs=1)
    assert not np.array_equal(one.importance, two.selections[0].importance)


def test_sample_weights_of_the_probe_count():
    x, y = images()

    def importance(weights):
        elastic_callback = callback(probe=(x, y, weights), rho=0.7)
        fit(elastic(), elastic_callback, epochs=1)
        return elastic_callback.selections[0].importance

    ones = np.ones(len(x), np.float32)
    np.testing.assert_allclose(importance(2 * ones), 4 * importance(ones), rtol=1e-3)


def test_verbose_prints_a_line_for_each_selection(capsys):
    fit(elastic(), callback(verbose=1, importance=favour(8)), epochs=3)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said] == [
        "Epoch 1: trains 1 of 10 tensors",
        "Epoch 3: trains 1 of 10 tensors",
    ]


def test_nothing_is_printed_unless_asked_for(capsys):
    fit(elastic(), callback(), epochs=3)
    assert capsys.readouterr().out == ""


def test_summary_is_a_table_of_the_selections():
    elastic_callback = callback()
    fit(elastic(), elastic_callback, epochs=3)
    assert len(elastic_callback.summary().splitlines()) == 2 + 2


def test_log_dir_holds_scalars_and_a_picture(tmp_path):
    fit(elastic(), callback(log_dir=tmp_path / "events"), epochs=3)
    (path,) = (tmp_path / "events").glob("events*")
    found = {
        (value.tag, event.step)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert {("elastic/rho", 2), ("elastic/similarity", 2), ("elastic/selection", 2)} <= found
    assert ("elastic/seconds_selection", 0) in found
    assert ("elastic/seconds_selection", 1) not in found  # no selection was made for that epoch


def test_equal_importance_trains_as_much_as_fits():
    elastic_callback = callback(importance=lambda model, x, y: np.ones(10))
    fit(elastic(), elastic_callback, epochs=1)
    assert elastic_callback.selections[0].mask.sum() == 4  # 10 + 4 * 2 of 18


def test_selecting_with_the_true_importance_lowers_the_loss():
    model = elastic()
    losses = fit(model, callback(rho=0.7, interval=3), epochs=9).history["loss"]
    assert losses[-1] < losses[0]
    assert CLASSES == model.output_shape[-1]
