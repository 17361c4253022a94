"""The scheduler of one elastic `fit`: when to select, for which `rho`, and when to stop."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.choose import records
from elastic_tf.choose.budget.deadline import DeadlineControl
from elastic_tf.choose.budget.ledger import Ledger
from elastic_tf.choose.budget.prior import StepCosts, first_step_seconds
from elastic_tf.choose.budget.ratio import Lookahead, RatioControl
from elastic_tf.choose.budget.settings import Settings
from elastic_tf.choose.probe import Worth, joined
from elastic_tf.choose.records import SelectionRecord
from elastic_tf.choose.selection import Selection, select_tensors, smallest_feasible_rho
from elastic_tf.files import to_json
from elastic_tf.memory.steps import Limit
from elastic_tf.stack import raw
from elastic_tf.train.engine.checks import (
    frozen_explained,
    warn_if_unlike,
    warn_if_untrained,
)
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.state import judge_next
from elastic_tf.train.head.features import dense_layer
from elastic_tf.train.head.solve import solvers


class Scheduler:
    """Decides during one `fit`; called at the beginnings and ends of steps and epochs.

    What is due at the beginning of an epoch is done there; where it needs a batch of `fit`, as soon
    as the first ones of the epoch are drawn. In between it is selected anew where `rho` or the
    deadline is not kept, by the importance evaluated last. `batch_size` is that of a step,
    where known.
    """

    def __init__(
        self, model: ElasticMixin, settings: Settings, ledger: Ledger, *, batch_size: int | None
    ) -> None:
        self._model, self._settings, self._ledger = model, settings, ledger
        self.selections: list[SelectionRecord] = []
        self.costs = StepCosts(model, settings.profile)
        self._worth = Worth(settings.importance, settings.probe.draws(), batch_size)
        self._memory: Limit | None = None  # until a first batch is there
        self._lookahead = Lookahead(model, ledger)

        can_time = not model.run_eagerly and settings.memory is None
        share = settings.control.share if can_time else 0.0
        self._ratio = RatioControl(model, ledger, self._lookahead, share)
        self._deadline: DeadlineControl | None = None
        if settings.deadline is not None:
            self._deadline = DeadlineControl(settings.deadline, model, ledger, self.costs)

    def epoch_begins(self, epoch: int, done: int = 0) -> None:
        """Do what is due; `done`: steps of the epoch made before an interruption."""
        self._ledger.epoch_begins(epoch, done)
        settings, rows = self._settings, self._model._elastic.rows
        is_due = not done and self._is_due(epoch)
        takes = settings.probe.data is None and self._worth.needs_probe and is_due
        started = self._ledger.elapsed
        drawn = self._worth.draw(epoch) if is_due else None
        seconds = self._ledger.elapsed - started

        def begin(batches: list[Any]) -> None:
            self._look(batches)
            if is_due:
                own = joined(batches, settings.probe.size) if takes else drawn
                self._select(epoch, own, seconds)
            self._ledger.count("selected")
            self._ledger.resume()

        if takes:
            self._lookahead.ask(begin, samples=settings.probe.size)
        elif self.costs.profile is not None and (settings.memory is None or self._memory):
            begin([])
        elif rows is not None:
            begin([rows.samples.take(np.arange(rows.samples.batch_size))])
        else:
            self._lookahead.ask(begin)

    def _is_due(self, epoch: int) -> bool:
        """Whether a new importance is."""
        made = [one.epoch for one in self.selections if one.reason == "interval"]
        return not made or not (self._is_settled or epoch - made[-1] < self._settings.interval)

    @functools.cached_property
    def _required(self) -> np.ndarray | None:
        """What is always trained: of a head that is solved all, for what is kept ends before it."""
        model, required = self._model, self._settings.required
        heads = [dense_layer(model, one.layer) for one in solvers(model)]
        if not heads:
            return required
        of_heads = {id(raw(one)) for head in heads for one in head.trainable_variables}
        found = np.array([id(tensor) in of_heads for tensor in model.tensors])
        return found if required is None else found | required

    @property
    def _is_settled(self) -> bool:
        """Whether another selection would be like the first; with a deadline the clock decides."""
        is_fixed = not callable(self._settings.rho) and not self._worth.needs_probe
        return is_fixed or self._deadline is not None

    @property
    def _epochs_to_come(self) -> int:
        """Epochs until the next selection."""
        left = self._ledger.epochs - self._ledger.epoch
        return left if self._is_settled else min(self._settings.interval, left)

    def _look(self, batches: list[Any]) -> None:
        """Know what steps cost, and refuse what no selection can keep."""
        settings, costs = self._settings, self.costs
        if costs.profile is None:
            costs.foretell(batches[0])
            self._ledger.count("foretold")
        if settings.memory is not None and self._memory is None:
            rows = self._model._elastic.rows
            beside: Any = {} if rows is None else {"beside": rows.held_bytes}
            self._memory = Limit(settings.memory, self._model, batches[0], **beside)
        if self.selections:
            return
        if self._deadline is not None or settings.rho_at(0) < 1.0:
            warn_if_untrained(self._model)
            if batches:
                warn_if_unlike(self._model, tf.keras.utils.unpack_x_y_sample_weight(batches[0])[0])
        if self._deadline is not None:
            self._deadline.begin()
        elif not callable(settings.rho):  # refused before an importance is evaluated
            self._selection(np.zeros(len(self._model.tensors)), settings.rho_at(0), "order")

    def _select(self, epoch: int, probe: Any, seconds: float) -> None:
        """Select by a new importance; `seconds` went into drawing the probe."""
        started = self._ledger.elapsed
        importance = self._worth.evaluate(self._model, probe)
        seconds += self._ledger.elapsed - started
        rho = self._settings.rho_at(epoch)
        if self._ratio.is_off(rho):
            self._ratio.learn()
        self._train(self._chosen(epoch, rho, importance, "interval", seconds))

    def _select_early(self, reason: str) -> None:
        """Select anew by the importance of the present selection, unless that is the same."""
        present = self.selections[-1]
        record = self._chosen(self._ledger.epoch, present.rho, present.importance, reason)
        if record.selection.plan == present.selection.plan:
            self._ratio.selected(self._ratio.predicted)  # measure anew
            return
        self._ratio.spent += self._ledger.retrace or 0.0
        self._train(record)

    def _chosen(
        self, epoch: int, rho: float, importance: np.ndarray, reason: str, seconds: float = 0.0
    ) -> SelectionRecord:
        """What to train for `rho`, or for what meets the deadline."""
        started = self._ledger.elapsed
        steps = self.costs.of_plans(self._epochs_to_come, filling=False)
        smallest = smallest_feasible_rho(self.costs.of_plans(self._epochs_to_come), self._required)
        if self._deadline is not None:
            present = self.selections[-1].predicted_ratio if self.selections else None
            rho = asked = self._deadline.rho(smallest, present)
        else:
            asked = self._ratio.ask(rho)
        # the first selection refuses a `rho` that is too small; later ones do what can be done
        asked = min(max(asked, smallest if rho >= smallest or self.selections else rho), 1.0)
        selection = self._selection(importance, asked, self._worth.strategy, memory=self._memory)
        return SelectionRecord(
            epoch=epoch,
            rho=rho,
            selection=selection,
            importance=importance,
            predicted_ratio=steps.step_time(selection.plan) / steps.t_full,
            seconds_importance=seconds,
            seconds_solve=self._ledger.elapsed - started,
            reason=reason,
            step=self._ledger.done,
        )

    def _selection(
        self, importance: np.ndarray, rho: float, strategy: str, **options: Any
    ) -> Selection:
        profile = self.costs.of_plans(self._epochs_to_come)
        options.update(required=self._required, strategy=strategy)
        with frozen_explained(self._model):
            return select_tensors(importance, profile, rho, **options)

    def _train(self, record: SelectionRecord) -> None:
        """Train that selection from now on."""
        if self.selections:
            self._finish_record()
        if self.selections and record.selection.plan == self._model.plan:
            record = dataclasses.replace(record, seconds_retrace=0.0)
        else:
            self._set_plan(record)
        self.selections.append(record)
        self._ratio.selected(record.predicted_ratio)
        if self._settings.verbose:
            print(records.line(record))

    def _set_plan(self, record: SelectionRecord) -> None:
        self._model.set_plan(record.selection.plan)
        self._ledger.count("selected")
        if self._deadline is None or self._deadline.has_time_to_keep():
            self._model.cache_prefix(self._epochs_to_come)
        self._ledger.count("kept")
        self._ledger.plan(record.predicted_ratio)

    def _finish_record(self) -> None:
        """Note what has been measured under the present selection."""
        record = self.selections[-1]
        seconds = record.seconds_retrace
        if seconds is None and self._ledger.own:
            seconds = self._ledger.retrace
        self.selections[-1] = dataclasses.replace(
            record, achieved_ratio=self._ratio.achieved, seconds_retrace=seconds
        )

    def step_begins(self) -> None:
        """Before the train function is called."""
        if not self._ledger.done:  # what other callbacks did before an epoch is no part of its step
            self._ledger.count("data, other callbacks")
            self._ledger.resume()
        self._lookahead.attach()
        is_first = self._ledger.retrace is None and self.selections
        if self._deadline is not None and is_first:
            if self._deadline.stops(first_step_seconds(self._model, self._ledger.ratio)):
                judge = functools.partial(judge_next, self._model)
                self._model.train_function = judge  # Keras calls it once

    def steps_made(self, count: int) -> None:
        """Measure; select anew where the budget is not kept; stop where the time is over."""
        self._ledger.step(count)
        record = self.selections[-1]
        if self._deadline is not None:
            if self._deadline.stops() or self._ledger.done == self._ledger.steps:
                return
            if self._deadline.is_off(record.predicted_ratio, record.is_full):
                self._select_early("deadline")
        elif self._ratio.share:
            self._ratio.step_was_made(is_full=record.is_full)
            self._ledger.count("timed")
            retrace = self._ledger.retrace or 0.0
            if self._ratio.is_off(record.rho) and self._ratio.can_afford(retrace):
                self._ratio.learn()
                self._select_early("ratio")

    def epoch_ends(self, logs: dict[str, Any] | None) -> None:
        """Note what was measured."""
        self._finish_record()
        record = self.selections[-1]
        if logs is not None:
            logs["rho"], logs["predicted_ratio"] = record.rho, record.predicted_ratio
            # once measured it stays among the logs: Keras's CSVLogger asks for the same at each
            measured = [r.achieved_ratio for r in self.selections if r.achieved_ratio is not None]
            if measured:
                logs["achieved_ratio"] = measured[-1]
        if self._deadline is not None:
            self._deadline.stops()

    def end(self) -> None:
        """`fit` ends."""
        if self._deadline is not None:
            self._deadline.end()

    def made_of(self) -> dict[str, Any]:
        """What must be the same in a `fit` that goes on."""
        return self._settings.made_of()

    def state(self) -> dict[str, Any]:
        """All that a `fit` needs to go on, as JSON values."""
        return {
            "records": [to_json(record) for record in self.selections],
            "tracking": self._worth.state(),
            "ratio": self._ratio.state(),
            "elapsed": self._ledger.elapsed,
        }

    def go_on(self, state: dict[str, Any], epoch: int) -> None:
        """Go on from `state` in that epoch; `pass_over` is to be called for every one begun.

        The time without power does not count.
        """
        self._ledger.epoch = epoch
        self._worth.go_on(state["tracking"])
        self.selections.extend(map(records.from_json, state["records"]))
        if self.selections:
            self._set_plan(self.selections[-1])
            self._ratio.selected(self.selections[-1].predicted_ratio)
        self._ratio.go_on(state["ratio"])
        self._ledger.count("start")
        self._ledger.already(state["elapsed"])
        self._ledger.count("before the interruption")

    def pass_over(self, epoch: int) -> None:
        """Draw what the probe drew before that epoch, and drop it."""
        self._worth.pass_over(epoch)
