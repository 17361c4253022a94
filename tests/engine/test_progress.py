"""What Keras's progress bar shows of an elastic training, and that nothing else notices."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from chosen import callback, dataset, elastic
from networks import crossentropy, network

from elastic_tf.budget.ratio import RatioControl
from elastic_tf.engine.progress import RatioBar, with_bar


def bars(said: str) -> list[list[str]]:
    """What stands behind the bar in each of its states."""
    lines = said.replace("\b", "").replace("\r", "\n").split("\n")
    return [line.rstrip().split(" - ")[1:] for line in lines if "[" in line]


def names(states: list[list[str]]) -> list[list[str]]:
    return [[part.split(":")[0] for part in parts[1:]] for parts in states]  # without the time


def trained(*others, batches: int = 4, **options):
    model = elastic()
    made = callback(**options)
    return model.fit(dataset(batches), epochs=2, verbose=1, callbacks=[made, *others]), made


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    """A bar is drawn at every step, not every 50 ms."""
    original = tf.keras.utils.Progbar.__init__

    def made(self, *args, **kwargs):
        original(self, *args, **{**kwargs, "interval": 0.0})

    monkeypatch.setattr(tf.keras.utils.Progbar, "__init__", made)


def test_every_step_shows_rho_and_what_is_predicted(capsys):
    _, made = trained()
    states = bars(capsys.readouterr().out)
    assert len(states) == 2 * 5  # four steps and the end of the epoch
    assert names(states) == [["loss", "rho", "predicted"]] * 10
    predicted = made.selections[0].predicted_ratio
    assert states[0][-2:] == states[9][-2:] == ["rho: 0.6000", f"predicted: {predicted:.4f}"]


def test_what_is_achieved_takes_its_place(capsys, monkeypatch):
    monkeypatch.setattr(RatioControl, "achieved", property(lambda self: 0.625))
    trained()
    states = bars(capsys.readouterr().out)
    assert names(states) == [["loss", "rho", "achieved"]] * 10
    assert states[0][-1] == "achieved: 0.6250"


def test_ratios_are_shown_as_they_are_now(capsys):
    now = iter(
        [
            {"rho": 0.5, "predicted": 0.4},
            {"rho": 0.5, "predicted": None, "achieved": 0.6},
            {"rho": 0.3, "achieved": None, "predicted": 0.2},
            {"rho": 0.3, "predicted": 0.25},
            {"rho": 0.3, "predicted": 0.25},
        ]
    )
    model = network()
    model.compile("sgd", crossentropy())
    model.fit(dataset(), verbose=1, callbacks=[RatioBar(lambda: next(now))])
    assert [state[2:] for state in bars(capsys.readouterr().out)] == [
        ["rho: 0.5000", "predicted: 0.4000"],
        ["rho: 0.5000", "achieved: 0.6000"],
        ["rho: 0.3000", "predicted: 0.2000"],
        ["rho: 0.3000", "predicted: 0.2500"],
        ["rho: 0.3000", "predicted: 0.2500"],
    ]


class Logs(tf.keras.callbacks.Callback):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.steps, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(dict(logs))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))


def test_other_callbacks_see_the_same_with_the_bar_and_without(tmp_path, capsys):
    seen = {}
    for bar in (True, False):
        logs = Logs()
        csv = tf.keras.callbacks.CSVLogger(str(tmp_path / f"{bar}.csv"))
        plain = [] if bar else [tf.keras.callbacks.ProgbarLogger("steps")]
        history, _ = trained(logs, csv, *plain)
        said = (tmp_path / f"{bar}.csv").read_text()
        seen[bar] = (logs.steps, history.history["loss"], history.epoch, said)
        assert [set(step) for step in logs.steps] == [{"loss"}] * 8
    assert seen[True] == seen[False]


def test_a_bar_or_a_list_of_the_users_own_is_left_alone():
    made = callback()
    own = tf.keras.callbacks.ProgbarLogger("steps")
    listed = tf.keras.callbacks.CallbackList([made])
    for given in ([made, own], listed, [], None, [tf.keras.callbacks.History()]):
        assert with_bar((), {"callbacks": given}) == (given, (), {"callbacks": given})


@pytest.mark.parametrize("is_list", [True, False])
def test_callbacks_may_stand_at_their_place(is_list):
    made = callback()
    given = [made] if is_list else made
    kept, args, kwargs = with_bar((1, 2, 3, 4, 5, given, 6), {"shuffle": True})
    assert kept is given
    assert (args[:5], args[6:], kwargs) == ((1, 2, 3, 4, 5), (6,), {"shuffle": True})
    assert args[5][0] is made
    assert [type(one) for one in args[5][1:]] == [RatioBar]


@pytest.mark.parametrize(("columns", "width"), [(80, 10), (160, 30)])
def test_the_bar_is_shorter_where_the_terminal_is_narrow(monkeypatch, columns, width):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24))
    )
    bar = RatioBar(dict)
    bar.set_params({"verbose": 1, "epochs": 1, "steps": 4})
    bar.set_model(None)
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    assert bar.progbar.width == width


@pytest.mark.parametrize("verbose", [0, 2])
def test_quiet_trainings_stay_as_they_are(capsys, verbose):
    elastic().fit(dataset(), verbose=verbose, callbacks=[callback()])
    said = capsys.readouterr().out
    assert np.char.count(said, "predicted") == (1 if verbose else 0)
