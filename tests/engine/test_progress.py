"""What Keras's progress bar shows beside the logs, and that nothing else notices."""

import re

import pytest
import tensorflow as tf
from networks import crossentropy, fit, images
from training import elastic


class Ratios(tf.keras.callbacks.Callback):
    """Shows a count of steps as `rho`; and the logs that it was given."""

    def __init__(self):
        super().__init__()
        self.steps, self.seen = 0, []

    def bar_ratios(self):
        is_even = self.steps % 2 == 0
        return {"rho": float(self.steps), "even": 1.0 if is_even else None, "loss": None}

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.seen.append(set(logs))


def bars(said: str) -> list[list[str]]:
    """What stands behind the bar in each of its states, but for the time."""
    lines = said.replace("\b", "").replace("\r", "\n").split("\n")
    states = [line.rstrip().split(" - ")[1:] for line in lines if "/3" in line]
    return [[part for part in parts if re.match(r"(?!ETA)\w+: ", part)] for parts in states]


@pytest.fixture(scope="module")
def model():
    made = elastic(kind="sgd")
    made.compile("sgd", crossentropy(), metrics=["accuracy"])
    return made


def test_every_step_shows_the_values_as_they_are_now_and_other_callbacks_see_the_logs(
    model, capsys, monkeypatch
):
    original = tf.keras.utils.Progbar.__init__

    def at_every_step(self, *args, **kwargs):
        original(self, *args, **{**kwargs, "interval": 0.0})

    monkeypatch.setattr(tf.keras.utils.Progbar, "__init__", at_every_step)
    shown, silent = Ratios(), Ratios()
    silent.bar_ratios = None
    history = fit(model, callbacks=[silent, shown], epochs=1, verbose=1)
    states = bars(capsys.readouterr().out)
    named = [[part for part in state if not part.startswith("accuracy")] for state in states]
    assert named == [
        ["rho: 1.0000"],
        ["rho: 2.0000", "even: 1.0000"],
        ["rho: 3.0000"],
        ["rho: 3.0000"],
    ]
    assert shown.seen == silent.seen == [{"loss", "accuracy"}] * 3
    assert history.keys() == {"loss", "accuracy"}


def test_a_bar_or_a_list_of_the_users_own_is_left_alone(model, capsys):
    own = tf.keras.callbacks.ProgbarLogger()
    params = {"verbose": 1, "epochs": 1, "steps": 3}
    listed = tf.keras.callbacks.CallbackList([Ratios(), own], model=model, **params)
    for given in ([Ratios(), own], listed):
        fit(model, callbacks=given, epochs=1, verbose=1)
        assert "rho" not in capsys.readouterr().out


def test_callbacks_may_stand_at_their_place(model, capsys):
    for given in (Ratios(), [Ratios()]):
        model.fit(*images(), 8, 1, 1, given)
        assert "rho: 3.0000" in capsys.readouterr().out
