"""Where an interrupted `fit` goes on in its data."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.choose.probe import Draws

ROWS, SIZE = 7, 2
BATCHES = 4  # the last one is smaller
EPOCHS = 4


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=1).batch(SIZE)


def twice_shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=1).shuffle(3, seed=2).batch(SIZE)


def numbers() -> np.ndarray:
    return np.arange(ROWS)


def pairs() -> Iterator[tuple[np.ndarray]]:
    yield from ((pair,) for pair in np.arange(200).reshape(100, 2))


KINDS = {
    "dataset": lambda: {"x": shuffled()},
    "shuffle below shuffle": lambda: {"x": twice_shuffled()},
    "repeated": lambda: {"x": shuffled().repeat(), "steps_per_epoch": 3},
    "one pass for all": lambda: {"x": shuffled().repeat(9), "steps_per_epoch": BATCHES},
    "arrays": lambda: {"x": numbers(), "batch_size": SIZE, "shuffle": True},
    "generator": lambda: {"x": pairs(), "steps_per_epoch": 3},
}


class Seen(tf.keras.Model):
    """Keeps the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[list[int]]] = {}
        self.compile(run_eagerly=True)

    def train_step(self, data: Any) -> dict[str, float]:
        x, *_ = tf.keras.utils.unpack_x_y_sample_weight(data)
        [*self.seen.values()][-1].append(np.ravel(x).tolist())
        return {"loss": 0.0}


class Begin(tf.keras.callbacks.Callback):
    """Lets `fit` begin in the middle."""

    def __init__(self, **place: Any) -> None:
        super().__init__()
        self.place = place

    def on_train_begin(self, logs: Any = None) -> None:
        self.fit = stack.running_fit(self.model)
        if self.place:
            nothing = {"arrived": lambda epoch: None, "ready": lambda iterator: None}
            self.fit.begin_at(**{**nothing, "steps": self.fit.steps, **self.place})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.seen[str(epoch)] = []

    def on_train_end(self, logs: Any = None) -> None:
        self.fit.end()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A dataset takes the global seed when it is made, which is before `batches`."""
    tf.keras.utils.set_random_seed(0)


def batches(data: dict[str, Any], **place: Any) -> dict[int, list[list[int]]]:
    """What each epoch is trained on."""
    tf.keras.utils.set_random_seed(0)
    model = Seen()
    model.fit(**{"shuffle": False, **data}, epochs=EPOCHS, verbose=0, callbacks=[Begin(**place)])
    return {int(epoch): found for epoch, found in model.seen.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_batches_come_next(kind):
    expected = batches(KINDS[kind]())
    # with a seed, Keras 3 shuffles arrays alike in each epoch
    is_alike = kind == "arrays" and not stack.KERAS_VERSION.startswith("2.")
    assert len({str(found) for found in expected.values()}) == (1 if is_alike else EPOCHS)
    for epoch, step in [(0, 2), (2, 0), (3, 1)]:
        seen = batches(KINDS[kind](), epoch=epoch, step=step)
        assert list(seen) == list(range(epoch, EPOCHS))
        assert seen.pop(epoch) == expected[epoch][step:]
        assert seen == {later: expected[later] for later in seen}


def test_another_iterator_of_the_same_dataset_gets_what_it_got():
    """A probe that draws from the training data takes part in their order."""

    def run(first: int) -> list[Any]:
        data = shuffled().map(lambda x: (x, x))
        probe, drawn = Draws(data, SIZE, 0), []

        def draw(epoch: int) -> None:
            if epoch == len(drawn):
                drawn.append(probe.draw()[0].numpy().tolist())

        class Draw(Begin):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                super().on_epoch_begin(epoch)
                draw(epoch)

        tf.keras.utils.set_random_seed(0)
        model = Seen()
        place = {"epoch": first, "step": 0, "arrived": draw}
        model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Draw(**place)])
        return [drawn[first:], {e: model.seen[e] for e in model.seen if int(e) >= first}]

    drawn, seen = run(0)
    assert run(2) == [drawn[2:], {e: seen[e] for e in seen if int(e) >= 2}]


def test_shorter_data_are_refused():
    data = shuffled().filter(lambda x: True)  # of unknown length
    with pytest.raises(ValueError, match="end after 4 batches, 5 of them were trained"):
        batches({"x": data}, epoch=1, step=BATCHES + 1, steps=BATCHES + 2)
