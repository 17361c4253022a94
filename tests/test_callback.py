from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, crossentropy, images, network, values

from elastic_tf.callback import ElasticCallback
from elastic_tf.model import ElasticModel
from elastic_tf.timing import TimingProfile, tensor_specs


def elastic() -> ElasticModel:
    model = ElasticModel.from_model(network())
    model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), crossentropy())
    return model


def table(count: int = 10) -> TimingProfile:
    """Every tensor costs 1 to update and 1 to pass by; the forward pass costs 10."""
    return TimingProfile.from_chain(t_dw=np.ones(count), t_dy=np.ones(count), t_forward=10.0)


def dataset(batches: int = 4) -> tf.data.Dataset:
    x, y = images()
    return tf.data.Dataset.from_tensor_slices((x, y)).take(4 * batches).batch(4)


def favour(*indices: int):
    """An importance function by which these tensors matter and no other."""
    return lambda model, x, y: np.isin(np.arange(len(model.tensors)), indices).astype(float)


def callback(**options) -> ElasticCallback:
    return ElasticCallback(table(), **{"rho": 0.6, "interval": 2, "probe": dataset(), **options})


def fit(model: ElasticModel, *callbacks, epochs: int = 5):
    return model.fit(dataset(), epochs=epochs, verbose=0, callbacks=list(callbacks))


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
    with pytest.warns(UserWarning, match="Epoch 2 goes on with the selection of epoch 0: .*nan"):
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
    with pytest.warns(UserWarning, match="goes on with the selection of epoch 0: The budget"):
        fit(elastic(), elastic_callback, epochs=2)
    assert [np.flatnonzero(r.mask).tolist() for r in elastic_callback.selections] == [[9]]


def test_unbatched_probe_is_named():
    with pytest.raises(ValueError, match="must yield batches"):
        fit(elastic(), callback(probe=dataset().unbatch()), epochs=1)


def test_probe_arrays_of_different_lengths_are_named():
    x, y = images()
    with pytest.raises(ValueError, match="length 5, 20"):
        fit(elastic(), callback(probe=(x, y[:5])), epochs=1)


def test_empty_probe_is_named():
    with pytest.raises(ValueError, match="an empty dataset"):
        fit(elastic(), callback(probe=dataset().take(0)), epochs=1)


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
        "Epoch 0: trains 1 of 10 tensors",
        "Epoch 2: trains 1 of 10 tensors",
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


@pytest.mark.parametrize("level", [0.0, -1.0])
def test_worthless_tensors_are_named_and_one_is_trained(level):
    model = elastic()
    names = [tensor.name for tensor in model.tensors]
    elastic_callback = callback(importance=lambda model, x, y: np.full(10, level))
    with pytest.warns(UserWarning, match=f"importance is {level:g}. Only '{names[9]}'"):
        fit(model, elastic_callback, epochs=1)
    assert np.flatnonzero(elastic_callback.selections[0].mask).tolist() == [9]


def test_worthless_tensors_leave_the_required_ones():
    required = np.isin(np.arange(10), [8, 9])
    elastic_callback = callback(importance=lambda model, x, y: -np.ones(10), required=required)
    with pytest.warns(UserWarning, match="largest importance is -1"):
        fit(elastic(), elastic_callback, epochs=1)
    np.testing.assert_array_equal(elastic_callback.selections[0].mask, required)


def test_equal_importance_trains_as_much_as_fits():
    elastic_callback = callback(importance=lambda model, x, y: np.ones(10))
    fit(elastic(), elastic_callback, epochs=1)
    assert elastic_callback.selections[0].mask.sum() == 4  # 10 + 4 * 2 of 18


def test_two_callbacks_on_one_model_are_refused():
    with pytest.raises(ValueError, match="Received: two of them for 'model"):
        fit(elastic(), callback(), callback())


def test_training_that_broke_leaves_the_model_free_for_another_callback():
    class Break(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = elastic()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback(), Break())
    fit(model, callback(), epochs=1)


def test_model_that_was_frozen_since_is_refused():
    model = elastic()
    profile = TimingProfile(10.0, table().sets, 10, tensors=tensor_specs(model))
    elastic_callback = ElasticCallback(profile, 0.6, 2, dataset())
    model.layers[1].trainable = False
    model.compile("sgd", crossentropy())
    with pytest.raises(ValueError, match="10 tensors, the model has 8; first difference at 0"):
        fit(model, elastic_callback)


def test_model_that_grew_since_is_refused():
    class Growing(ElasticModel):
        def grow(self):
            self.more = tf.keras.layers.Dense(2)
            self.more.build((None, 2))

    model = Growing.from_model(network())
    model.compile("sgd", crossentropy())
    elastic_callback = callback()
    model.grow()
    model.compile("sgd", crossentropy())
    with pytest.raises(ValueError, match="10 tensors, the model has 12"):
        fit(model, elastic_callback)


def test_schedule_that_turns_to_rubbish_is_named():
    elastic_callback = callback(rho=lambda epoch: 0.6 if epoch < 2 else 60)
    with pytest.raises(ValueError, match="rho=60 from the schedule at epoch 2"):
        fit(elastic(), elastic_callback)


def test_rho_and_deadline_exclude_each_other():
    with pytest.raises(ValueError, match="not both: .* rho=0.6, deadline=60"):
        callback(deadline=60)


@pytest.mark.parametrize("deadline", [0, -3.0, float("nan")])
def test_deadline_that_cannot_be_is_refused(deadline):
    with pytest.raises(ValueError, match=f"deadline={deadline!r}"):
        callback(rho=None, deadline=deadline)


@pytest.mark.parametrize("name", ["smoothing", "control"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_shares_outside_their_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        callback(**{name: value})


def test_band_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="band=0"):
        callback(band=0)


def test_plain_model_is_refused():
    model = network()
    model.compile("sgd", crossentropy())
    with pytest.raises(TypeError, match="Received: Functional"):
        model.fit(dataset(), verbose=0, callbacks=[callback()])


def test_profile_of_another_model_is_refused():
    specs = tensor_specs(elastic())[:-1]
    other = TimingProfile(10.0, table(9).sets, 9, tensors=specs)
    with pytest.raises(ValueError, match="9 tensors, the model has 10"):
        fit(elastic(), ElasticCallback(other, 0.6, 2, dataset()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 8}, "batch size 8, data of batch size 4"),
        ({"input_shape": ((9, 9, 2),)}, r"profile of \(9, 9, 2\), data of \(6, 6, 2\)"),
    ],
)
def test_profile_of_other_data_is_refused(fields, message):
    other = TimingProfile(10.0, table().sets, 10, **fields)
    with pytest.raises(ValueError, match=message):
        fit(elastic(), ElasticCallback(other, 0.6, 2, dataset()))


def test_budget_too_small_names_the_smallest_rho():
    # forward pass 10 of 30, cheapest tensor 2 more: 12 / 30
    with pytest.raises(ValueError, match="smallest feasible rho is 0.4"):
        fit(elastic(), callback(rho=0.35))


@pytest.mark.parametrize("rho", [0.0, 1.7, -0.5, float("nan")])
def test_rho_outside_its_range_is_refused(rho):
    with pytest.raises(ValueError, match=f"Received: rho={rho}"):
        callback(rho=rho)


@pytest.mark.parametrize("interval", [0, -1, 1.5, True])
def test_interval_below_one_is_refused(interval):
    with pytest.raises(ValueError, match=f"`interval` .* Received: {interval}"):
        callback(interval=interval)


def test_probe_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="Received: NoneType"):
        ElasticCallback(table(), 0.6)


def test_profile_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="Received: 'profile.json'"):
        ElasticCallback("profile.json", 0.6, 2, dataset())


def test_selecting_with_the_true_importance_lowers_the_loss():
    model = elastic()
    losses = fit(model, callback(rho=0.7, interval=3), epochs=9).history["loss"]
    assert losses[-1] < losses[0]
    assert CLASSES == model.output_shape[-1]
