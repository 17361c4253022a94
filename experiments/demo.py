"""Adapt a small pre-trained network to another domain, fully and elastically, side by side.

The network knows scikit-learn's handwritten digits as they are, at 64 by 64 pixels; the other
domain shows them turned, inverted, paler and noisy. Both trainings begin with the head solved in
closed form. An elastic epoch takes less than half of a full one, so that more of them fit into less
time. Nothing is downloaded. Results and pictures go to runs/demo/.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.training import harness, recording, sources
from elastic_tf.app.runs import run
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import to_json
from elastic_tf.files.table import format_table

WEIGHTS = Path(__file__).parent / "weights" / "digits_resnet_64.h5"
IMAGE_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """The comparison."""

    out: Path = option(Path("runs/demo"), help="directory for results and pictures")
    rho: float = option(0.4, help="allowed step time / full step time of the elastic run")
    epochs: int = option(5, help="passes over the training images of the full run")
    elastic_epochs: int = option(7, help="the same of the elastic run")
    batch_size: int = option(32, help="images in a training step")
    learning_rate: float = option(1e-3, help="of Adam at the start; falls on a cosine to zero")
    seed: int = option(0, help="of order and draws")
    quick: bool = option(False, help="a short form that shows that everything works")


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Profile, train both in turn, print the table, draw."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.quick:
        settings = dataclasses.replace(settings, epochs=2, elastic_epochs=2)
    data = other_domain(settings)
    batch = next(iter(data.train))
    epochs = {"full": settings.epochs, "elastic": settings.elastic_epochs}
    full, elastic = (adapted_model(settings, data, epochs[name]) for name in epochs)
    _, before = full.evaluate(data.test, verbose=0)
    print(f"Accuracy on the other domain before adapting: {before:.1%}")
    print("Profiling this device ...", flush=True)
    started = time.perf_counter()
    profile = et.profile_model(elastic, *batch, repeats=2 if settings.quick else 8)
    print(f"... took {time.perf_counter() - started:.0f} s, which is needed once", flush=True)
    profile.save(settings.out / "profile.json")
    board = settings.out / "board"
    shutil.rmtree(board, ignore_errors=True)  # curves of an earlier demo
    callback = et.ElasticCallback(
        profile,
        rho=settings.rho,
        required=et.zoo.head_tensors(elastic),
        log_dir=board / "selections",
    )

    called = {"full": "full", "elastic": f"elastic, rho={settings.rho:g}"}
    models = {"full": full, "elastic": elastic}
    chosen = {"full": [et.SolveHead()], "elastic": [callback, et.SolveHead()]}
    turns, clocks, fits = Turns(), {}, {}
    for name, model in models.items():
        clocks[name] = recording.TrainingClock()
        first, last = turns.callbacks(name)  # the last tells a line for each epoch
        curves = tf.keras.callbacks.TensorBoard(board / name, write_graph=False)
        fits[name] = functools.partial(
            model.fit,
            data.samples(),
            epochs=epochs[name],
            validation_data=data.test,
            verbose=0,
            callbacks=[first, clocks[name], curves, *chosen[name], last],
        )
    turns.run(fits)
    accuracy = {name: model.history.history["val_accuracy"] for name, model in models.items()}

    starts = [record.epoch for record in callback.selections]
    last = np.searchsorted(starts, np.arange(epochs["elastic"]), side="right") - 1
    masks = [callback.selections[k].mask for k in last]
    # without what is no step: both met the same machine, epoch by epoch
    steps = {
        name: (clock.total("seconds") - clock.total("overhead_seconds")) / clock.total("steps")
        for name, clock in clocks.items()
    }
    rows = [
        {
            "method": called[name],
            "accuracy": accuracy[name][-1],
            "training_seconds": clocks[name].total("seconds"),
            "seconds_per_step": clocks[name].total("seconds") / clocks[name].total("steps"),
            "achieved_ratio": steps[name] / steps["full"],
        }
        for name in models
    ]
    print("\n" + format_table(rows, run.COLUMNS))
    for row, clock in zip(rows, clocks.values()):
        said = recording.said_of(clock.total("seconds"), clock.total("overhead_seconds"))
        print(f"{row['method']}: {said}")
    shown = {
        called[name]: (
            np.cumsum([epoch["seconds"] for epoch in clock.epochs]),
            100 * np.array(accuracy[name]),
        )
        for name, clock in clocks.items()
    }
    names = [tensor.name.split(":")[0] for tensor in elastic.tensors]
    axes = {"x": "training time (s)", "y": "test accuracy (%)"}
    lines = plots.lines(shown, **axes, conclusion=plots.reached(shown))
    plots.save(lines, settings.out / "accuracy.png")
    plots.save(plots.selection_map(masks, names=names), settings.out / "selection.png")
    result = {"settings": settings, "device": profile.device, "rows": rows}
    write_json(settings.out / "result.json", to_json(result))
    print(f"Pictures: {settings.out}/accuracy.png, {settings.out}/selection.png")
    print(f"Curves:   {tensorboard(board)}")
    print("          then open http://localhost:6006 in a browser; Ctrl-C ends it")
    return rows


def other_domain(settings: Settings) -> et.data.ImageData:
    """The digits as the network does not know them."""
    return sources.load(
        "digits:shifted",
        channels=1,
        image_size=IMAGE_SIZE,
        batch_size=settings.batch_size,
        seed=settings.seed,
        validation_share=0.8 if settings.quick else 0.0,  # a fifth is left to train on
    )


def adapted_model(settings: Settings, data: et.data.ImageData, epochs: int) -> et.ElasticModel:
    """The pre-trained network, ready to be trained."""
    tf.keras.utils.set_random_seed(settings.seed)
    model = et.zoo.build(
        "digits_resnet", classes=data.classes, input_size=IMAGE_SIZE, weights=WEIGHTS
    )
    steps = epochs * data.steps_per_epoch
    rate = et.optimizers.cosine(settings.learning_rate, steps, warm_up=0.1)
    return harness.compiled(model, "adam", rate)


def tensorboard(log_dir: Path) -> str:
    """The command that shows `log_dir`, from the present directory."""
    words = ["-m", "tensorboard.main", "--logdir", os.path.relpath(log_dir)]
    return shlex.join([sys.executable, *words])


class Turns:
    """Lets several calls of `fit` run side by side, one epoch of each in turn.

    What is compared then meets the same machine: its speed drifts by a factor of two in minutes.
    Each `fit` runs in a thread of its own and waits for its turn before every epoch.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []

    def callbacks(self, name: str) -> tuple[tf.keras.callbacks.Callback, ...]:
        """The first and the last callback of the `fit` of that name."""

        def wait(epoch: int, logs: Any) -> None:
            self._wait(name)

        def hand_on(epoch: int, logs: Any) -> None:
            print(f"epoch {epoch + 1}, {name}: {logs['val_accuracy']:.1%}", flush=True)
            with self._changed:
                self._waiting.append(self._waiting.pop(0))
                self._changed.notify_all()

        make = tf.keras.callbacks.LambdaCallback
        return make(on_epoch_begin=wait), make(on_epoch_end=hand_on)

    def run(self, fits: dict[str, Callable[[], Any]]) -> None:
        """Run them all; the first error ends all and is raised."""
        self._waiting = list(fits)
        # daemons: an interrupt ends the program, not only the wait for them
        threads = [
            threading.Thread(target=self._one, args=item, daemon=True) for item in fits.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _wait(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == name or self._errors)
            if self._errors:
                raise RuntimeError(f"'{name}' stops because another run failed.")

    def _one(self, name: str, fit: Callable[[], Any]) -> None:
        try:
            self._wait(name)  # what comes before its first epoch is timed too
            fit()
        except BaseException as error:
            self._errors.append(error)
        with self._changed:
            if name in self._waiting:
                self._waiting.remove(name)
            self._changed.notify_all()


if __name__ == "__main__":
    main()
