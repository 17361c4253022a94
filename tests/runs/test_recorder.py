"""What a run's history holds of each epoch."""

from __future__ import annotations

from networks import crossentropy, images, network

from elastic_tf.commands.training import recording
from elastic_tf.costs.flops import step_flops
from elastic_tf.model import ElasticModel
from elastic_tf.runs import run as runs


class Ticking:
    """A sensor that counts a joule at each reading, until it fails."""

    name, period = "ticks", 3600.0

    def __init__(self, readings):
        self.left = readings

    def advance(self):
        self.left -= 1
        if self.left < 0:
            raise OSError("gone")
        return 1.0


def recorded(path, **options):
    model = ElasticModel.from_model(network())
    model.compile("sgd", crossentropy())
    clock = recording.TrainingClock()
    run = runs.create(path, {"seed": 0})
    recorder = recording.Recorder(run, clock, **options)
    x, y = images()
    model.fit(x, y, epochs=2, batch_size=10, verbose=0, callbacks=[clock, recorder])
    return runs.load(path).history


def test_only_the_first_epoch_holds_what_the_run_began_with(tmp_path):
    first, second = recorded(tmp_path, first={"warm_head_seconds": 1.5})
    assert first["warm_head_seconds"] == 1.5
    assert "warm_head_seconds" not in second


def test_history_holds_operations_and_no_invented_energy(tmp_path):
    model = ElasticModel.from_model(network())
    model.compile("sgd", crossentropy())
    flops = step_flops(model, *(part[:10] for part in images()))
    for epoch in recorded(tmp_path, cost=lambda mask: (flops, 400)):
        parts = epoch["flops_per_step"]
        assert parts["forward"] == flops.forward > 0
        assert parts["backward"] == flops.backward > 0
        assert parts["uncounted"] == {}
        assert epoch["activation_bytes"] == 400
        assert epoch["energy_joules"] == "no sensor"


def test_history_holds_seconds_and_what_was_trained(tmp_path):
    for epoch in recorded(tmp_path):
        assert epoch["seconds"] >= epoch["overhead_seconds"] >= 0
        assert epoch["evaluation_seconds"] == 0
        assert epoch["trained"] == [[0, epoch["tensors"] - 1]]
        assert epoch["steps"] > 0


def test_history_holds_the_energy_of_each_epoch(tmp_path):
    energies = [epoch["energy_joules"] for epoch in recorded(tmp_path, sensor=Ticking(10))]
    assert energies == [1.0, 1.0]


def test_history_holds_no_energy_after_the_sensor_failed(tmp_path):
    energies = [epoch["energy_joules"] for epoch in recorded(tmp_path, sensor=Ticking(2))]
    assert energies == [1.0, None]
