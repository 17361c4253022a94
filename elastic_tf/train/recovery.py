"""Backing up one `fit`, and going on with one that was interrupted, as if it had not been.

A backup is made between two steps. Selecting, tracing and writing change nothing of what it holds,
so that a kill during one of them only repeats it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.files import to_json
from elastic_tf.plan import Plan
from elastic_tf.train import optimizers, saved
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.saved import Slots, State


@dataclasses.dataclass(frozen=True)
class Backup:
    """Where backups of a `fit` are written, how often, and what happens when training diverges.

    Start the same program again, and it continues from the last backup. The backup stays when
    training has ended, so that nothing is trained twice.

    Attributes:
        directory: used by this `fit` alone.
        every: steps between two backups within an epoch. None: one at the beginning of each epoch.
        seconds: seconds between two backups within an epoch.
        nan: what to do when the loss or a weight is NaN or infinite: "stop" raises, and the last
            good backup stays; "ignore" goes on.
    """

    directory: str | Path
    every: int | None = None
    seconds: float | None = None
    nan: str = "stop"

    def __post_init__(self) -> None:
        arguments.path("directory", self.directory)
        if self.every is not None:
            arguments.count("every", self.every)
        if self.seconds is not None:
            arguments.number("seconds", self.seconds, low=0.0, above=True)
        arguments.choice("nan", self.nan, ("stop", "ignore"))


class PlanBackup(tf.keras.callbacks.Callback):
    """Backs up a `fit` whose plan other callbacks set, where there is no `ElasticCallback`.

    Stands behind those.
    """

    def __init__(self, options: Backup) -> None:
        super().__init__()
        self._options = options

    def on_train_begin(self, logs: Any = None) -> None:
        """Go on from a backup, if there is one."""
        self._recovery = Recovery(self.model, self._options, self)
        self._recovery.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Back up."""
        self._recovery.epoch_begins(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Keep what came out."""
        self._recovery.end()

    def made_of(self) -> dict[str, Any]:
        """Nothing is known of what the others were asked."""
        return {}

    def state(self) -> dict[str, Any]:
        """The plan."""
        plan = self.model._elastic.plan
        return {"plan": plan and plan.to_json()}

    def go_on(self, state: dict[str, Any], epoch: int) -> None:
        """Take the plan up, until others set theirs."""
        self.model.set_plan(state["plan"] and Plan.from_json(state["plan"]))

    def pass_over(self, epoch: int) -> None:
        """Others draw nothing that is known here."""


class Recovery:
    """Keeps the state of one `fit`, which has not begun its first epoch, in two files.

    Of what decides between steps what is trained, the scheduler, it knows `state()`, as JSON
    values, `go_on(state, epoch)`, `pass_over(epoch)` for an epoch that is not trained again, and
    `made_of()`, what must be the same in a training that goes on.
    """

    def __init__(self, model: ElasticMixin, options: Backup, scheduler: Any) -> None:
        self._model, self._options, self._scheduler = model, options, scheduler
        self._slots = Slots(options.directory)
        self._data: Any = model._elastic.data
        self._history = model.history  # an `evaluate` puts another one in its place
        self._callbacks = model._elastic.callbacks
        self._epoch = self._done = 0  # where the training is
        self._since = 0  # steps since the last backup
        self._written_at = 0.0
        self._resumed: State | None = None  # until the interrupted epoch begins
        self._optimizer = _settings(model.optimizer)  # before the first step

    def begin(self, *, anew: bool = False) -> str | None:
        """Go on from a backup, if there is one, and say where; `anew` removes it."""
        model = self._model
        model._elastic.leave = self._leave  # when `fit` ends, in whatever way
        self._slots.open()
        if anew:
            self._slots.clear()
        if stack.generators_made_readable(model):
            model.make_train_function(force=True)
        found = self._slots.read()
        if found is None:
            return None
        self._go_on(found)
        said = f"The backup in '{self._slots.path}'"
        epoch, step = found.data["epoch"], found.data["step"]
        asked = self._data.epochs
        if epoch >= asked or self._is_over(found.data):
            is_early = epoch < asked
            by = (
                f"a callback stopped after {epoch} of {found.data['epochs']}" if is_early else epoch
            )
            warnings.warn(
                f"{said} is of a training of {by} epochs, `fit` was asked for "
                f"{asked} in all: nothing is trained. Ask for more epochs, or "
                "remove the backup to train anew.",
                stacklevel=3,
            )
        return f"{said} is taken up: epoch {epoch + 1}, after {step} of its steps."

    def epoch_begins(self, epoch: int) -> int:
        """Steps of this epoch that were made before an interruption; else it is backed up."""
        self._epoch, found = epoch, self._resumed
        self._done = 0 if found is None else found.data["step"]
        if found is None:
            self._write()
            return 0
        self._resumed = None
        if self._data.is_moved:
            raise ValueError(
                "`fit` must go on from one backup. Received: `Backup` and another callback, which "
                f"begins with epoch {epoch + 1}. Leave BackupAndRestore out."
            )
        self._take_up_logs(found)
        if self._done:
            items = saved.metrics(self._model)
            _check(found.data["metrics"], saved.described(items, "metric"))
            saved.assign(items, found.arrays, "metric")
        saved.set_host_generators(found.data["random"])
        return self._done

    def steps_made(self, count: int, logs: dict[str, Any] | None) -> None:
        """Back up where it is due, `count` steps after the last call."""
        self._done += count
        loss = (logs or {}).get("loss")
        if self._options.nan != "ignore" and loss is not None and not np.isfinite(loss):
            self._diverged(f"loss={loss}")
        self._since += count
        steps = self._data.steps
        if steps is None or self._done >= steps:
            return  # the beginning of the next epoch is not far
        every, seconds = self._options.every, self._options.seconds
        is_late = seconds is not None and time.monotonic() - self._written_at >= seconds
        if is_late or (every is not None and self._since >= every):
            self._write()

    def end(self) -> None:
        """Keep the trained model as `fit` leaves it: the same command has nothing left to do."""
        if self._resumed is not None:
            self._take_up_logs(self._resumed)
            return
        self._epoch, self._done = self._epoch + 1, 0
        self._model._elastic.endings.append(functools.partial(self._write, is_finished=True))

    def _leave(self) -> None:
        """However `fit` ends."""
        self._slots.close()
        self._data.end()

    def _go_on(self, found: State) -> None:
        data, model = found.data, self._model
        items = saved.variables(model)
        _check(data["made_of"], self._made_of())
        model._elastic.fit_state = data["fit_state"]
        saved.assign(items, found.arrays, "variable")
        epoch = self._data.epochs if self._is_over(data) else data["epoch"]
        self._scheduler.go_on(data["scheduler"], epoch)
        self._resumed = found
        self._data.begin_at(
            epoch,
            data["step"],
            data["steps"],
            arrived=self._scheduler.pass_over,
            ready=lambda iterator: saved.make_metrics(model, iterator),
        )

    def _is_over(self, data: dict[str, Any]) -> bool:
        """Whether there is nothing left to train: it may have been stopped early."""
        return bool(data["is_finished"] and self._data.epochs <= data["epochs"])

    def _made_of(self) -> dict[str, Any]:
        """What must be the same in a training that goes on."""
        elastic = self._model._elastic
        rows = elastic.rows
        return {
            "initial_epoch": self._data.first_epoch,
            "batches in an epoch": self._data.steps,
            "statistics": elastic.statistics,
            "loss": [_told(one) for one in tf.nest.flatten(self._model.loss)],
            "checksum of samples": None if rows is None else rows.samples.checksum,
            **self._scheduler.made_of(),
            "callbacks": [type(one).__name__ for one, _ in saved.remembering(self._callbacks)],
            **self._optimizer,
            **saved.described(saved.variables(self._model), "variable"),
        }

    def _write(self, *, is_finished: bool = False) -> None:
        """Write a backup; where that fails, the last good one stays and training goes on."""
        model = self._model
        items = saved.variables(model)
        metrics = saved.metrics(model) if self._done else []
        memories, remembered = saved.memories(self._callbacks)
        data = {
            "epoch": self._epoch,
            "step": self._done,
            "epochs": self._data.epochs,
            "steps": self._data.steps,
            "is_finished": is_finished,
            "made_of": self._made_of(),
            "metrics": saved.described(metrics, "metric"),
            "scheduler": self._scheduler.state(),
            "history": {
                name: [np.asarray(value).tolist() for value in values]
                for name, values in self._history.history.items()
            },
            "history_epochs": self._history.epoch,
            "callbacks": memories,
            "fit_state": model.fit_state,
            "random": saved.host_generators(),
        }

        def arrays() -> Iterator[tuple[str, np.ndarray]]:
            for item, (name, value) in zip(items, saved.arrays(items, "variable")):
                is_weight = item.trainable and item.dtype.is_floating
                if self._options.nan != "ignore" and is_weight and not np.isfinite(value).all():
                    self._diverged(f"NaN or infinity in '{item.name}'")
                yield name, value
            yield from saved.arrays(metrics, "metric")
            yield from remembered.items()

        self._since, self._written_at = 0, time.monotonic()
        try:
            self._slots.write(data, arrays())
        except OSError as error:
            warnings.warn(
                f"The backup of epoch {self._epoch + 1}, step {self._done} could not be written: "
                f"{error}. Training goes on; {self._slots.said()}.",
                stacklevel=3,
            )

    def _diverged(self, what: str) -> NoReturn:
        raise FloatingPointError(
            f"The loss and the weights must be finite. Received: {what} in epoch {self._epoch + 1} "
            f"after {self._done} steps; {self._slots.said()}. Lower the learning rate, clip the "
            "gradients or look at the data, and choose another directory."
        )

    def _take_up_logs(self, found: State) -> None:
        """What was reported so far, and what others made of it."""
        history = self._history
        saved.remind(self._callbacks, found.data["callbacks"], found.arrays)
        history.epoch = list(found.data["history_epochs"])
        history.history = {name: list(values) for name, values in found.data["history"].items()}


def _settings(optimizer: Any) -> dict[str, Any]:
    """What the optimizer is made with, as JSON values; its kind alone where it does not tell."""
    told = {"optimizer": type(optimizer).__name__}
    try:
        config = {**optimizer.get_config(), **optimizers.unwrapped(optimizer).get_config()}
        config.pop("inner_optimizer", None)  # Keras 3 counts those of a process in their names
        config = to_json(config)
    except (NotImplementedError, TypeError) as error:
        warnings.warn(
            "Backups are compared by the settings of the optimizer. Received: "
            f"{told['optimizer']}, which does not list them ({error}). A backup made with other "
            "settings will be taken up. Give its learning-rate schedule a `get_config`.",
            stacklevel=5,
        )
        return told
    return {**told, **{f"optimizer's {name}": value for name, value in config.items()}}


def _told(loss: Any) -> Any:
    """A loss as JSON values: its name, and its settings where it tells them."""
    told = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if not isinstance(loss, tf.keras.losses.Loss):
        return told
    # one of the user's own may list none, or what is no JSON: it is known by its name
    with contextlib.suppress(NotImplementedError, TypeError, ValueError):
        config = loss.get_config()
        return {"kind": told, **to_json({k: config[k] for k in config if k not in ("name", "fn")})}
    return told


def _check(held: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse what was kept of another training; the first difference is named."""
    for name in {**given, **held}:
        have, want = given.get(name), held.get(name)
        if None not in (have, want) and have != want and name != "optimizer's name":
            raise ValueError(
                "A training goes on with the model, the optimizer, the callbacks and the arguments "
                f"of `fit` it was started with. Received: {name} {have}, in the backup {want}. Use "
                "the same, or another directory."
            )
