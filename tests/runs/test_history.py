"""What a run's history says of the run."""

from __future__ import annotations

import pytest

from elastic_tf.commands.training.history import seconds_to, share_beside_steps, summary


def epochs(*accuracies, energy="no sensor"):
    return [
        {
            "val_accuracy": accuracy,
            "val_loss": 1.0,
            "seconds": 10.0,
            "overhead_seconds": 2.0,
            "evaluation_seconds": 3.0,
            "steps": 5,
            "peak_memory_bytes": 100 + index,
            "energy_joules": energy,
            "activation_bytes": 50 - index,
            "flops_per_step": {"forward": 10, "backward": 20, "update": 1},
        }
        for index, accuracy in enumerate(accuracies)
    ]


def test_summary_adds_up_the_epochs():
    found = summary(epochs(0.5, 0.7, 0.6), (0.6, 0.9))
    assert found["accuracy"] == 0.6  # the last, not the best
    assert found["training_seconds"] == 30 and found["seconds_with_evaluation"] == 39
    assert found["share_beside_steps"] == pytest.approx(6 / 30)
    assert found["flops"] == 15 * 31
    assert found["peak_memory_bytes"] == 102 and found["activation_bytes"] == 50
    assert found["seconds_to"] == {"0.6": 20.0, "0.9": None}


@pytest.mark.parametrize(("energy", "total"), [("no sensor",) * 2, (None, None), (2.5, 5.0)])
def test_energy_is_never_invented(energy, total):
    assert summary(epochs(0.5, 0.6, energy=energy))["energy_joules"] == total


def test_energy_is_unknown_where_a_part_is():
    history = [*epochs(0.5, energy=2.5), *epochs(0.6, energy=None)]
    assert summary(history)["energy_joules"] is None


def test_operations_are_unknown_where_they_were_not_counted():
    history = epochs(0.5)
    del history[0]["flops_per_step"]
    assert summary(history)["flops"] is None


def test_the_share_beside_the_steps_is_below_1_where_they_take_less_than_the_rest():
    history = epochs(0.5, 0.7)
    history[0]["overhead_seconds"] = 9.9
    assert share_beside_steps(history) == pytest.approx(11.9 / 20)
    assert share_beside_steps([{"seconds": 0.0, "overhead_seconds": 0.0}]) == 0.0


def test_seconds_to_an_accuracy_are_those_of_the_first_epoch_that_reaches_it():
    assert seconds_to(epochs(0.5, 0.7, 0.6, 0.8), 0.7) == 20.0
