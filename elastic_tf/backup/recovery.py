"""Backing up one `fit`, and going on with one that was interrupted, as if it had not been.

A backup is made between two steps: at the beginning of every epoch, before anything is selected for
it, after every so many steps, and at the end. Selecting, tracing and writing change nothing of what
a backup holds, so that a kill during one of them only repeats it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from elastic_tf.backup import data_position
from elastic_tf.backup import state as backup_state
from elastic_tf.backup.divergence import Divergence
from elastic_tf.backup.interruptions import Interruptions
from elastic_tf.backup.keras_callbacks import Neighbours
from elastic_tf.backup.options import BackupOptions
from elastic_tf.backup.slots import Slots, State
from elastic_tf.budget.choosing import Chooser
from elastic_tf.budget.control import Control
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.files.ranges import from_ranges, to_ranges


class Recovery:
    """Keeps the state of a training in two files.

    Args:
        model: the model that is trained.
        slots: where to.
        options: how often, and what to do when the loss is not finite.
        chooser: selects.
        control: keeps the budget.
        masks: at the end of each epoch.
    """

    def __init__(
        self,
        model: ElasticMixin,
        slots: Slots,
        *,
        options: BackupOptions,
        chooser: Chooser,
        control: Control,
        masks: list[np.ndarray],
    ) -> None:
        self._model = model
        self._slots = slots
        self._options = options
        self._clock = control.pace.clock
        self._chooser = chooser
        self._control = control
        self._masks = masks
        self._handler: Any = model._elastic.data
        self._first: int = self._handler._initial_epoch
        self._neighbours = Neighbours(model._elastic.callbacks)
        self._is_looked_at = False  # the first step
        self._since = 0  # steps since the last backup
        self._written_at = self._clock()
        self._divergence = Divergence(model, slots, options.nan)
        self._resumed: State | None = None  # until the interrupted epoch begins
        self._signals = Interruptions()
        self._optimizer = backup_state.optimizer_settings(model.optimizer)  # before the first step

    def begin(self) -> int | None:
        """Go on from a backup, if there is one; returns the epoch the training began with, then.

        Raises:
            ValueError: the directory cannot be written, or holds no backup of this training.
        """
        self._model._elastic.leave = self._leave
        self._slots.open()
        backup_state.use_generators(self._model)
        state = self._slots.read()
        if state is not None:
            self._go_on(state)
            print(self._going_on(state.data))
        self._signals.catch()
        return None if state is None else self._first

    def epoch_begins(self, epoch: int) -> int:
        """Steps of this epoch that were made before an interruption; else it is backed up."""
        if self._resumed is None:
            self._write(epoch, 0)
            self._signals.obey()
            return 0
        data, values = self._resumed
        self._take_up_logs(self._resumed)
        self._resumed = None
        if data["step"]:
            items = backup_state.metrics(self._model)
            backup_state.check(data["metrics"], items, what="metrics' variables")
            backup_state.assign(items, values, "metric")
        backup_state.set_host_generators(data["random"])
        return int(data["step"])

    def step_begins(self) -> None:
        """Before the train function is called."""
        self._divergence.step_begins()

    def steps_made(self, count: int, logs: dict[str, Any] | None) -> None:
        """Back up where it is due, and leave where a signal asks for it.

        Args:
            count: steps since the last call.
            logs: of the step.

        Raises:
            FloatingPointError: the loss is not finite, and nothing more can be done about it.
            SystemExit: a signal was received.
        """
        if not self._is_looked_at:
            self._is_looked_at = True
            self._warn_of_hidden_draws()
        pace, steps = self._control.pace, self._handler._inferred_steps
        if self._divergence.is_met(logs, self._where):
            return
        self._since += count
        if steps is None or pace.done >= steps:
            return  # the beginning of the next epoch is not far
        every, seconds = self._options.every, self._options.seconds
        is_due = every is not None and self._since >= every
        is_late = seconds is not None and self._clock() - self._written_at >= seconds
        if is_due or is_late or self._signals.received is not None:
            self._write(pace.epoch, pace.done)
            self._signals.obey()

    def end(self) -> None:
        """Keep the trained model: the same command has nothing left to do."""
        if self._resumed is not None:
            self._take_up_logs(self._resumed)
        else:
            if self._model._elastic.accumulation is not None:
                self._model._elastic.accumulation.flush()  # as `fit` would next
            self._write(self._control.pace.epoch + 1, 0, is_finished=True)
        self._signals.release()
        self._signals.obey()

    def _leave(self) -> None:
        """`fit` ends, in whatever way."""
        self._signals.release()
        self._slots.close()

    @property
    def _where(self) -> str:
        return f"in epoch {self._control.pace.epoch} after {self._control.pace.done} steps"

    def _go_on(self, state: State) -> None:
        data, values = state
        model, handler = self._model, self._handler
        self._check_place(data)
        items = backup_state.variables(model)
        backup_state.check(data["variables"], items, what="variables")
        backup_state.check_optimizer(data["optimizer"], self._optimizer)
        self._neighbours.check(data["neighbours"])
        model._fit_state.values = data["fit_state"]
        backup_state.assign(items, values, "variable")
        self._chooser.go_on(data["chooser"])
        self._control.go_on(data["control"])
        self._masks.extend(from_ranges(mask, len(model.tensors)) for mask in data["masks"])
        self._divergence.is_lowered = data["is_lowered"]
        trained = model.trainable_variables
        model._elastic.averaged.clear()
        model._elastic.averaged.update(id(trained[k]) for k in data["averaged"])
        if data["collected"] and model._elastic.accumulation is not None:
            chosen = model._trained(model._elastic.plan)
            count, without = data["collected"]
            sums = [values[f"sum/{k}"] for k in range(len(chosen))]
            model._elastic.accumulation.go_on(chosen, count, without, sums)
        self._resumed = state
        is_over = self._is_over(data)
        data_position.start_at(
            handler,
            epoch=handler._epochs if is_over else data["epoch"],
            step=data["step"],
            steps=data["steps"],
            arrived=self._chooser.pass_over,
            ready=lambda iterator: backup_state.make_metrics(model, iterator),
        )

    def _is_over(self, data: dict[str, Any]) -> bool:
        """Whether there is nothing left to train."""
        return bool(data["is_finished"] and self._handler._epochs <= data["epochs"])

    def _going_on(self, data: dict[str, Any]) -> str:
        """What is said when a backup was found."""
        found = f"The backup in '{self._slots.path}'"
        if self._is_over(data):
            return (
                f"{found} is of a training that has ended, after {data['epochs']} epochs: nothing "
                "is trained. Remove it, or choose another `backup_dir`, to train anew."
            )
        if data["epoch"] >= self._handler._epochs:
            return (
                f"{found} is past epoch {data['epoch']}, `fit` was asked for "
                f"{self._handler._epochs} in all: nothing is trained. Ask for more epochs."
            )
        return (
            f"{found} is taken up: epoch {data['epoch'] + 1} of {self._handler._epochs}, after "
            f"{data['step']} of its steps."
        )

    def _check_place(self, data: dict[str, Any]) -> None:
        for name, value in self._place.items():
            held = data["place"][name]
            if None not in (value, held) and value != held:
                raise ValueError(
                    "A training goes on with the arguments of `fit` it was started with. Received: "
                    f"{name} {value}, in the backup {held}. Use the same, or another `backup_dir`."
                )

    @property
    def _place(self) -> dict[str, int | None]:
        """What the number of a step means."""
        accumulation = self._model._elastic.accumulation
        return {
            "initial_epoch": self._first,
            "batches in an epoch": self._handler._inferred_steps,
            "accumulate": 1 if accumulation is None else accumulation.steps,
        }

    def _write(self, epoch: int, step: int, *, is_finished: bool = False) -> None:
        """Write a backup; where that fails, the last good one stays and training goes on."""
        model, state = self._model, self._model._elastic
        items, metrics = backup_state.variables(model), backup_state.metrics(model) if step else []
        count, without, sums = state.accumulation.collected() if state.accumulation else (0, [], [])
        history = model.history
        data = {
            "epoch": epoch,
            "step": step,
            "place": self._place,
            "epochs": self._handler._epochs,
            "steps": self._handler._inferred_steps,
            "is_finished": is_finished,
            "is_lowered": self._divergence.is_lowered,
            "variables": backup_state.described(items),
            "optimizer": self._optimizer,
            "metrics": backup_state.described(metrics),
            "averaged": [
                k for k, v in enumerate(model.trainable_variables) if id(v) in state.averaged
            ],
            "collected": [count, without] if count else None,
            "chooser": self._chooser.state(),
            "control": self._control.state(),
            "masks": [to_ranges(mask) for mask in self._masks],
            "history": {
                name: [np.asarray(value).tolist() for value in values]
                for name, values in history.history.items()
            },
            "history_epochs": history.epoch,
            "neighbours": self._neighbours.state(),
            "fit_state": model.fit_state,
            "random": backup_state.host_generators(),
        }

        def arrays() -> Iterator[tuple[str, np.ndarray]]:
            for item, (name, value) in zip(items, backup_state.arrays(items, "variable")):
                self._divergence.check(item, value)
                yield name, value
            yield from backup_state.arrays(metrics, "metric")
            yield from self._neighbours.arrays()
            yield from ((f"sum/{k}", part) for k, part in enumerate(sums if count else []))

        self._since, self._written_at = 0, self._clock()
        try:
            self._slots.write(data, arrays())
        except FloatingPointError as error:
            self._divergence.meet(f"{error} {self._where}")
        except OSError as error:
            warnings.warn(
                f"The backup of epoch {epoch}, step {step} could not be written: {error}. Training "
                f"goes on; the last good backup in '{self._slots.path}' stays.",
                stacklevel=3,
            )

    def _warn_of_hidden_draws(self) -> None:
        hidden = backup_state.hidden_draws(self._model)
        if hidden:
            warnings.warn(
                f"The training step holds {', '.join(hidden)}: random ops that keep their place to "
                "themselves, so that a training that goes on draws other numbers. Use "
                "tf.random.Generator in the layer, or Keras's own layers.",
                stacklevel=4,
            )

    def _take_up_logs(self, state: State) -> None:
        """What was reported so far, and what others made of it."""
        data, history = state.data, self._model.history
        self._neighbours.go_on(data["neighbours"], state.arrays)
        history.epoch = list(data["history_epochs"])
        history.history = {name: list(values) for name, values in data["history"].items()}
