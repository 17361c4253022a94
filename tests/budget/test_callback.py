"""The callback: when it selects, what it hands on, what it leaves behind."""

import copy
import re

import numpy as np
import pytest
import tensorflow as tf
from chosen import callback, dataset, elastic, favour, fit, table
from networks import crossentropy, images, network, values

from elastic_tf.callback import ElasticCallback
from elastic_tf.choose import importance
from elastic_tf.choose.budget import scheduler
from elastic_tf.choose.budget.settings import Control, Deadline
from elastic_tf.choose.probe import Probe
from elastic_tf.choose.selection import select_tensors
from elastic_tf.model import ElasticModel
from elastic_tf.train.head.solve import SolveHead
from elastic_tf.train.samples import Samples


def test_callback_selects_at_the_start_and_after_every_interval():
    elastic_callback = callback()
    history = fit(elastic(), elastic_callback).history
    records = elastic_callback.selections
    assert [record.epoch for record in records] == [0, 2, 4]
    for record in records:
        assert record.mask.any()
        assert record.predicted_ratio == table().step_time(record.mask) / table().t_full <= 0.6
    assert set(history["rho"]) == {0.6}
    assert history["predicted_ratio"][::2] == [record.predicted_ratio for record in records]
    assert len(elastic_callback.summary().splitlines()) == 2 + 3 + 1
    fit(elastic(), elastic_callback, epochs=1)  # once more
    assert [record.epoch for record in elastic_callback.selections] == [0]


@pytest.mark.filterwarnings("ignore:Training must leave features")
def test_of_a_head_that_is_solved_all_is_trained():
    """Else what is kept of samples ends behind its kernel, and is void once that is solved."""
    samples = Samples(*images(), batch_size=4, memory=0)

    def chosen(*more, **options):
        one = callback(importance=favour(9), **options)
        elastic().fit(samples, epochs=2, verbose=0, callbacks=[one, *more])
        return np.flatnonzero(one.selections[0].mask).tolist()

    assert chosen(rho=0.4) == [9]
    with pytest.raises(ValueError, match="too small to train the 2 required tensors"):
        chosen(SolveHead(), rho=0.4)
    assert chosen(SolveHead(), rho=0.47) == [8, 9]
    assert {4, 8, 9} <= {*chosen(SolveHead(), rho=0.9, required=np.arange(10) == 4)}


def test_rows_are_the_numbers_of_the_summary():
    elastic_callback = callback()
    fit(elastic(), elastic_callback)
    rows, record = elastic_callback.rows(), elastic_callback.selections[1]
    assert [row["epoch"] for row in rows] == [1, 3, 5]
    assert (rows[1]["trained"], rows[1]["tensors"]) == (record.mask.sum(), 10)
    for name in ("rho", "predicted_ratio", "seconds_importance", "seconds_retrace"):
        assert rows[1][name] == getattr(record, name)
    assert all(row["achieved_ratio"] is None for row in rows)
    lines = elastic_callback.summary().splitlines()[2:-1]
    assert [line.split()[0] for line in lines] == ["1", "3", "5"]


def test_summary_compares_steps_with_a_foretold_full_one_where_none_was_timed():
    elastic_callback = callback(control=Control(share=0.0))
    fit(elastic(), elastic_callback, epochs=12)
    told = elastic_callback.summary().splitlines()[-2]
    took, share = (float(found) for found in re.findall(r"[\d.]+(?= ms| of a full)", told))
    assert told.startswith("No full step was timed. ") and told.endswith(" as profiled.")
    assert 1e-3 * share * table().t_full == pytest.approx(took, abs=0.051)  # as it is rounded


def test_tensor_that_left_comes_back():
    turns = iter([favour(8), favour(9), favour(8)])
    elastic_callback = callback(
        rho=0.44, interval=1, importance=lambda model, x, y: next(turns)(model, x, y)
    )  # one tensor fits
    fit(elastic(), elastic_callback, epochs=3)
    selected = [np.flatnonzero(record.mask).tolist() for record in elastic_callback.selections]
    assert selected == [[8], [9], [8]]


def test_without_a_probe_the_last_tensors_that_fit_are_trained_whatever_comes():
    elastic_callback = ElasticCallback(table(), rho=0.6, interval=1, control=Control(share=0.0))
    fit(elastic(network), elastic_callback, epochs=3)
    (record,) = elastic_callback.selections
    # 10 for the forward pass, 1 for each tensor trained and 1 for each from the first one on: 30 in
    # all; scale and offset of the normalisation before the head come after the kernels
    assert np.flatnonzero(record.mask).tolist() == [5, 8, 9]


def test_by_depth_a_schedule_is_followed():
    by_schedule = ElasticCallback(table(), rho=lambda epoch: 0.4 + 0.1 * epoch, interval=1)
    fit(elastic(network), by_schedule, epochs=3)
    assert [record.mask.sum() for record in by_schedule.selections] == [1, 2, 3]


@pytest.mark.parametrize("importance", [importance.paper, importance.depth])
def test_an_importance_is_selected_by_its_own_strategy(monkeypatch, importance):
    seen = []

    def selected(*args, strategy, **options):
        seen.append(strategy)
        return select_tensors(*args, strategy=strategy, **options)

    monkeypatch.setattr(scheduler, "select_tensors", selected)
    fit(elastic(), callback(importance=importance), epochs=1)
    assert seen[1:] == [importance.strategy]  # behind what asks whether any tensor fits


def test_schedule_gives_each_selection_its_rho():
    elastic_callback = callback(rho=lambda epoch: 0.4 + 0.1 * epoch)
    fit(elastic(), elastic_callback)
    assert [record.rho for record in elastic_callback.selections] == pytest.approx([0.4, 0.6, 0.8])


def test_a_copy_is_unused_and_has_equal_settings():
    one = callback(rho=Deadline(60.0), interval=4, required=np.arange(10) > 8)
    one.selections.append("used")
    two = copy.deepcopy(one)
    assert two.selections == []
    assert (two.settings.rho, two.settings.interval) == (Deadline(60.0), 4)
    assert two.settings.probe is one.settings.probe  # no copy of data
    fit(elastic(), copy.deepcopy(callback()), epochs=1)


class Seen(ElasticModel):
    """Notes the first value of each batch that it is trained on."""

    seen: list[float] = []

    def train_step(self, data):
        tf.py_function(lambda x: Seen.seen.append(float(x[0, 0, 0, 0])), [data[0]], [])
        return super().train_step(data)


def order(elastic_callback=None, **options) -> list[float]:
    """What a training by `fit`'s own shuffled data sees, in its order."""
    shuffled(elastic_callback, **options)
    return Seen.seen


def shuffled(elastic_callback=None, **options) -> Seen:
    """A model trained on shuffled data."""
    tf.keras.utils.set_random_seed(0)  # of the shuffling, too
    x, y = images()
    source = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=3).batch(4)
    model = Seen.from_model(network())
    Seen.seen = []
    model.compile("sgd", crossentropy(), **options)
    chosen = [elastic_callback] if elastic_callback else []
    model.fit(source, epochs=3, verbose=0, callbacks=chosen)
    return model


def test_neither_probe_nor_profile_from_the_data_of_fit_changes_their_order(capsys):
    elastic_callback = ElasticCallback(
        None, 1.0, 2, Probe(size=8), importance=favour(7, 8), required=np.ones(10, bool)
    )
    plain, chosen = shuffled(), shuffled(elastic_callback)
    assert len(elastic_callback.selections) == 2
    assert elastic_callback.profile.method == "prior"
    assert values(plain.variables) == values(chosen.variables)
    assert capsys.readouterr().out == ""


def test_probe_of_fits_own_data_is_what_comes_next():
    probes = []

    def watch(model, x, y):
        probes.append(np.asarray(x)[:, 0, 0, 0])
        return np.ones(len(model.tensors))

    seen = order(ElasticCallback(table(), 0.6, 1, Probe(size=6), importance=watch))
    assert [probe[0] for probe in probes] == pytest.approx(seen[::5])
    assert [probe[4] for probe in probes] == pytest.approx(seen[1::5])
    assert [len(probe) for probe in probes] == [6, 6, 6]


@pytest.mark.parametrize("later", [0.2, 0.9])
def test_a_later_selection_does_what_can_be_done(later):
    elastic_callback = callback(rho=lambda epoch: later if epoch else 0.6, interval=1)
    fit(elastic(), elastic_callback, epochs=2)
    assert elastic_callback.selections[1].predicted_ratio <= max(later, 12 / 30)


@pytest.mark.parametrize(("kind", "memory"), [("samples", None), ("dataset", "64 MiB")])
def test_without_a_profile_times_are_foretold(kind, memory):
    model = elastic()
    before = values(model.variables)
    data = Samples(*images(), batch_size=4) if kind == "samples" else dataset()
    elastic_callback = ElasticCallback(rho=0.8, memory=memory)
    history = model.fit(data, epochs=2, verbose=0, callbacks=[elastic_callback]).history
    profile = elastic_callback.profile
    assert (profile.method, profile.batch_size) == ("prior", 4)
    assert 0.0 < elastic_callback.selections[0].predicted_ratio <= 0.8
    assert np.isfinite(history["loss"]).all() and values(model.variables) != before


def test_several_steps_in_a_call_take_their_own_probe():
    of_fit = ElasticCallback(table(), 0.6, 1, Probe(size=20), importance=favour(8))
    assert order(of_fit, steps_per_execution=2) == order(steps_per_execution=2)
