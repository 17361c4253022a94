import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from clocks import Device, Passing, data, run, table
from networks import L, crossentropy, network

import elastic_tf as et
from elastic_tf.choose.budget import prior
from elastic_tf.choose.budget.ratio import RatioControl


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTIC_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prefixed():
    """A profile half of whose forward pass can be kept."""
    chain = table()
    return dataclasses.replace(chain, prefix=chain.items[:5])


@pytest.mark.parametrize("delivered", [0.5, 0.9, 1.2])
def test_what_a_device_delivered_is_counted_on_again(cache, delivered):
    before = prefixed()
    assert prior.recalled(before) == (before, "")
    prior.remember(before, delivered)
    after, said = prior.recalled(before)
    assert f"{delivered:.0%} of the savings" in said
    assert after.t_full == pytest.approx(before.t_full)
    for mask in np.random.default_rng(0).random((20, 10)) < 0.4:
        for one, other in ((before, after), *[(p.with_cached_prefix() for p in (before, after))]):
            saved = delivered * (1.0 - one.step_time(mask) / one.t_full)
            assert 1.0 - other.step_time(mask) / other.t_full == pytest.approx(saved)


def test_another_batch_or_device_or_a_damaged_file_has_nothing(cache, monkeypatch):
    prior.remember(table(), 0.5)
    (file,) = cache.iterdir()
    for change in ({"batch_size": 8}, {"optimizer": "SGD"}, {"device": {"name": "Board"}}):
        assert not prior.recalled(dataclasses.replace(table(), **change))[1]
    for text in ("", "[]", '{"delivered": 1e9, "created": ""}', '{"delivered": "nan"}'):
        file.write_text(text)
        assert not prior.recalled(table())[1]
    monkeypatch.setenv("ELASTIC_TF_CACHE", "")
    prior.remember(table(), 0.5)
    assert not prior.recalled(table())[1]


def test_a_place_that_cannot_be_written_stops_no_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELASTIC_TF_CACHE", str(tmp_path / "file"))
    prior.remember(table(), 0.5)
    assert not prior.recalled(table())[1]


def test_a_training_without_a_profile_teaches_the_next_one(cache, capsys, monkeypatch):
    def timed(self, *, is_full: bool) -> None:
        self.ratios.append(0.98)

    monkeypatch.setattr(RatioControl, "step_was_made", timed)
    for number in range(2):
        model = et.ElasticModel.from_model(network())
        model.compile("sgd", crossentropy())
        chosen = et.ElasticCallback(rho=0.999, verbose=1)
        model.fit(data(5), verbose=0, callbacks=[chosen])
        assert ("of the savings foretold" in capsys.readouterr().out) == (number == 1)
        assert chosen.profile.method == "prior"


def test_the_seconds_of_a_summary_add_up():
    device = Device(tracing=3.0, validating=2.0)
    elastic = run(device, 0.7, Passing(device), selecting=1.5)
    said = elastic.summary().splitlines()[-1]
    parts = dict(re.findall(r"([a-z, ]+?) (\d+\.\d)(?:, |;)", said.removeprefix("Seconds: ")))
    assert float(said.split()[-3]) == pytest.approx(device.now, abs=0.1)
    assert sum(map(float, parts.values())) == pytest.approx(device.now, abs=0.5)
    assert {"steps", "first steps", "selected", "ends of epochs"} <= {one.strip() for one in parts}


def test_a_summary_tells_the_head_and_what_passed_before_an_interruption(tmp_path):
    def fit(folder, *callbacks) -> et.ElasticCallback:
        tf.keras.utils.set_random_seed(0)
        layers = [L.Input((4,)), L.Dense(8, activation="relu", name="one"), L.Dense(3, name="two")]
        model = et.ElasticModel.from_model(tf.keras.Sequential(layers))
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        samples = et.Samples(np.eye(4, dtype=np.float32)[np.arange(24) % 4], np.arange(24) % 3)
        elastic = et.ElasticCallback(rho=0.999, backup=et.Backup(tmp_path / folder))
        model.fit(samples, epochs=2, verbose=0, callbacks=[elastic, et.SolveHead(), *callbacks])
        return elastic

    def breaks(epoch, logs):
        if epoch == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit("cut", tf.keras.callbacks.LambdaCallback(on_epoch_begin=breaks))
    assert "before the interruption " in fit("cut").summary()
    assert fit("whole")._ledger.seconds["head"] > 0.0
