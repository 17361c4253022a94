"""The callback that makes `model.fit` elastic: every few epochs it chooses what to train."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose import records
from elastic_tf.choose.budget.ledger import Ledger
from elastic_tf.choose.budget.scheduler import Scheduler
from elastic_tf.choose.budget.settings import Control, Rho, Settings
from elastic_tf.choose.importance import depth, loss_decrease
from elastic_tf.choose.probe import Probe, needs_probe
from elastic_tf.choose.records import SelectionRecord
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train.recovery import Backup, Recovery
from elastic_tf.train.samples import known_of

_CONTROL = Control()


class ElasticCallback(tf.keras.callbacks.Callback):
    """Trains the last tensors, or those that matter most, within `rho` of the step time.

    By default the last tensors that fit are selected once. With a probe or an importance, at the
    first epoch and then every `interval` epochs, it draws a probe, evaluates the importance of
    every tensor, selects, and hands the plan to the model.

    Between selections it times some steps, and full steps for comparison, which change nothing. If
    the achieved ratio leaves the band around `rho`, or the planned end is off the deadline, it
    selects again at once, also within an epoch, with the importance evaluated last. A training that
    would end late is stopped a few steps early, with a warning.

    The same callback can be used again; `copy.deepcopy` makes an unused one with equal settings.

    Args:
        profile: times measured on this device by `profile_model`. None: foretold from a forward
            pass, in about a second, and corrected by the steps that run.
        rho: allowed step time / full step time in (0, 1]; or a schedule `epoch -> rho`, read
            every `interval` epochs; or `et.Deadline(seconds)` for the whole `fit`, everything
            included.
        interval: epochs between two selections; 3 keeps 80 % of the importance (paper, Fig. 7a).
            With a deadline importance is evaluated once, and the clock decides when to select.
        probe: samples on which importance is evaluated: a `tf.data.Dataset` in batches of the size
            that was profiled, or `(x, y)` arrays, with sample weights as a third part if training
            has them; or an `et.Probe` of them with its size. None, where one is needed: the next
            batches of `fit`, drawn before they are trained on, so that the order of its data stays.
        importance: function `(model, x, y) -> array (N,)`; see `et.importance`. None: the
            last tensors that fit are trained, by `importance.depth`, chosen once and for nothing;
            with a `probe`, `importance.loss_decrease`.
        required: True where a tensor is always trained; bool, shape (N,).
        memory: bytes that a step may take, or a text like "256 MiB": weights, slots, the batch and
            what `et.Samples` keeps included; not the library, nor data that are read ahead. No full
            steps are timed then, and no importance that needs a probe is taken. See
            `et.memory.Limit`.
        control: an `et.Control`: what keeping the ratio may cost.
        backup: an `et.Backup`; the same `fit` goes on from its last backup if it is interrupted,
            with the same results (see "Power cuts" in keras.md). None keeps none.
        verbose: 1 prints a line for each selection; 0 prints nothing.

    Attributes:
        selections: a `SelectionRecord` for each selection of the last `fit`.
        profile: the `TimingProfile` that it goes by; foretold by the last `fit` if none was given.

    Raises:
        TypeError: an argument of another kind.
        ValueError: one out of range.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 3.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)  # another one is for tests

    def __init__(
        self,
        profile: TimingProfile | None = None,
        rho: Rho = 0.5,
        interval: int = 3,
        probe: Any = None,
        *,
        importance: Callable[..., np.ndarray] | None = None,
        required: np.ndarray | None = None,
        memory: int | str | None = None,
        control: Control = _CONTROL,
        backup: Backup | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        if importance is None:
            importance = depth if probe is None else loss_decrease
        probe = probe if isinstance(probe, Probe) else Probe(probe)
        if memory is not None and needs_probe(importance):
            raise ValueError(
                "Within `memory` the last tensors are trained, or those of an importance that "
                f"needs no probe: a probe takes the gradients of all. Received: memory={memory!r} "
                f"and {getattr(importance, '__name__', importance)!r}. Leave `probe` and "
                "`importance` out."
            )
        self.settings = Settings(
            profile, rho, interval, probe, importance, required, control, verbose, memory
        )
        if backup is not None:
            arguments.instance("backup", backup, Backup, "an et.Backup(directory)")
        self.backup = backup
        self.selections: list[SelectionRecord] = []
        self.profile = profile
        self._recovery: Recovery | None = None
        self._has_ended = False  # a `fit` with this callback

    def __deepcopy__(self, memo: dict[int, Any]) -> ElasticCallback:
        """An unused callback with equal settings; data and functions are shared."""
        copied = type(self)(**vars(self.settings), backup=self.backup)
        copied.clock = self.clock
        return copied

    def summary(self) -> str:
        """A table of the selections: what was asked for, predicted, achieved, and what it took.

        A last line says where the seconds of `fit` went.
        """
        text = records.table(self.selections)
        if not self._has_ended:
            return text
        profile, ledger = self.profile, self._ledger
        is_told = any(one.achieved_ratio is not None for one in self.selections)
        if not is_told and ledger.is_settled and profile is not None:
            known = "foretold" if profile.method == "prior" else "profiled"
            share = 1e6 * ledger.step_seconds / profile.t_full
            step = f"The last steps took {1e3 * ledger.step_seconds:.1f} ms"
            text += f"\nNo full step was timed. {step}, {share:.2f} of a full one as {known}."
        return f"{text}\n{ledger.said()}"

    def rows(self) -> list[dict[str, Any]]:
        """The numbers of `summary`, for `pandas.DataFrame` and the like: a row for each selection.

        epoch (from 1), step, reason, trained (tensors), tensors (N), rho, asked (of the selector),
        predicted_ratio, achieved_ratio, seconds_importance, seconds_solve and seconds_retrace; None
        where one is not known.
        """
        return records.rows(self.selections)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse what cannot be served; forget an earlier `fit`."""
        state = arguments.elastic(self.model)._elastic
        if state.callback is not None:
            raise ValueError(
                "A model is trained with one ElasticCallback. Received: two of them for "
                f"'{self.model.name}'. Leave one out."
            )
        state.callback = self
        data = state.data if state.rows is None else state.rows.samples
        size, shapes = known_of(data)
        if self.settings.profile is not None:
            self.settings.profile.check(self.model, batch_size=size, input_shape=shapes)
        self._ledger = state.ledger = Ledger(
            self.clock, epochs=self.params["epochs"], steps=self.params["steps"]
        )
        # else `fit` begins here, in a loop of the user's own
        if self.clock is time.perf_counter and state.fit_started is not None:
            self._ledger.already(time.perf_counter() - state.fit_started)
        self._scheduler = Scheduler(self.model, self.settings, self._ledger, batch_size=size)
        self.selections, self.profile = self._scheduler.selections, self.settings.profile
        if self.backup is not None:
            self._recovery = Recovery(self.model, self.backup, self._scheduler)
            said = self._recovery.begin(anew=self._has_ended)
            if said and self.settings.verbose:
                print(said)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate the importance where its interval has passed."""
        self._scheduler.epoch_begins(
            epoch, 0 if self._recovery is None else self._recovery.epoch_begins(epoch)
        )

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep the number of the first step of a call."""
        self._step = batch
        self._scheduler.step_begins()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Measure; select anew where the budget is not kept; back up."""
        # Keras 3 counts a call of several steps as a whole one, at the end of an epoch too
        count = int(min(batch + 1, self.params["steps"] or math.inf)) - self._step
        self._scheduler.steps_made(count)
        if self._recovery is not None:
            self._recovery.steps_made(count, logs)
        self._ledger.resume()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note what was measured."""
        self._scheduler.epoch_ends(logs)
        self.profile = self._scheduler.costs.profile

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Show and keep what came out, once a head is solved again."""
        self._has_ended, state = True, self.model._elastic
        self._ledger.count("ends of epochs")
        state.endings.append(self._end)
        if self._recovery is not None:
            self._recovery.end()
        if state.fit_started is None:  # a loop of the user's own
            self._end()

    def _end(self) -> None:
        self._ledger.count("head")
        self.model._elastic.callback = self.model._elastic.ledger = None
        self._scheduler.end()
