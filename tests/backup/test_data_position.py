"""Where an interrupted `fit` goes on in its data."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.backup import data_position
from elastic_tf.importance.probe import Draws
from elastic_tf.stack import data_adapter

ROWS, SIZE = 7, 2
BATCHES = 4  # the last one is smaller


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=1).batch(SIZE)


def twice_shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=1).shuffle(3, seed=2).batch(SIZE)


def numbers() -> np.ndarray:
    return np.arange(ROWS)


KINDS = {
    "dataset": lambda: {"x": shuffled()},
    "shuffle below shuffle": lambda: {"x": twice_shuffled()},
    "repeated": lambda: {"x": shuffled().repeat(), "steps_per_epoch": 3},
    "one pass for all": lambda: {"x": shuffled().repeat(9), "steps_per_epoch": BATCHES},
    "arrays": lambda: {"x": numbers(), "batch_size": SIZE, "shuffle": True},
    "generator": lambda: {"x": iter(np.arange(200).reshape(100, 2)), "steps_per_epoch": 3},
}


def handler_of(kind: str) -> data_adapter.DataHandler:
    tf.keras.utils.set_random_seed(0)
    return data_adapter.DataHandler(**KINDS[kind](), epochs=5, model=None)


def batches(handler) -> dict[int, list[list[int]]]:
    """What each epoch is trained on."""
    seen: dict[int, list[list[int]]] = {}
    for epoch, iterator in handler.enumerate_epochs():
        seen[epoch] = [np.ravel(next(iterator)).tolist() for _ in handler.steps()]
    return seen


def start(handler, epoch: int, step: int, **options):
    steps = handler.inferred_steps
    nothing = {"arrived": lambda epoch: None, "ready": lambda iterator: None}
    data_position.start_at(handler, epoch=epoch, step=step, steps=steps, **{**nothing, **options})
    return handler


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_differ_from_epoch_to_epoch(kind):
    seen = batches(handler_of(kind))
    assert len({str(seen[epoch]) for epoch in seen}) == 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch, step", [(0, 0), (0, 2), (1, 0), (3, 1), (4, 2)])
def test_the_same_batches_come_next(kind, epoch, step):
    expected = batches(handler_of(kind))
    seen = batches(start(handler_of(kind), epoch, step))
    assert list(seen) == list(range(epoch, 5))
    assert seen.pop(epoch) == expected[epoch][step:]
    assert seen == {later: expected[later] for later in seen}


def test_nothing_comes_after_the_last_epoch():
    assert batches(start(handler_of("dataset"), 5, 0)) == {}


def test_every_epoch_is_announced_and_the_first_step():
    arrived, ready = [], []
    handler = start(handler_of("dataset"), 2, 1, arrived=arrived.append, ready=ready.append)
    batches(handler)
    assert arrived == [0, 1, 2, 3, 4]
    assert len(ready) == 1


def test_another_iterator_of_the_same_dataset_gets_what_it_got():
    """A probe that draws from the training data takes part in their order."""

    def run(first: int) -> list[list[int]]:
        tf.keras.utils.set_random_seed(0)
        data = shuffled().map(lambda x: (x, x))
        probe, drawn = Draws(data, SIZE, 0), []

        def draw(epoch):
            drawn.append(probe.draw()[0].numpy().tolist())

        handler = data_adapter.DataHandler(x=data, epochs=8, model=None)
        start(handler, first, 0, arrived=draw)
        seen = [[x.numpy().tolist() for x, _ in it] for _, it in handler.enumerate_epochs()]
        return [drawn[first:], seen]

    drawn, seen = run(0)
    assert run(5) == [drawn[5:], seen[5:]]


def test_shorter_data_are_refused():
    handler = start(handler_of("dataset"), 1, BATCHES + 1)
    with pytest.raises(ValueError, match="end after 4 batches, 5 of them were trained"):
        batches(handler)


def test_a_fit_that_begins_elsewhere_is_refused():
    handler = start(handler_of("dataset"), 1, 0)
    handler._initial_epoch = 2
    with pytest.raises(ValueError, match="begins with epoch 2"):
        batches(handler)
