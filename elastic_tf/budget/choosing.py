"""Choosing what to train during one `fit`: importance, budget, selection, and its record."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf.budget.control import Control
from elastic_tf.budget.deadline import Deadline
from elastic_tf.budget.ratio import Rho, rho_at
from elastic_tf.engine import replicas
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.files.json_form import to_json
from elastic_tf.importance.tracking import Worth
from elastic_tf.selection import records
from elastic_tf.selection.records import SelectionRecord
from elastic_tf.selection.selector import select_tensors, smallest_feasible_rho
from elastic_tf.timing.profile import TimingProfile

if TYPE_CHECKING:
    from elastic_tf.runs.board import Board

# Tracing a step / evaluating the importance for the first time, which traces several passes: 0.18
# with MobileNet 0.5 and 0.16 with ResNet50, on one core.
_TRACE = 0.2
# Part of a deadline's time that selections after the first may take; else they are made less often.
_SELECTING = 0.2
_KEY = "selection"  # in the state of `fit` that Keras's checkpoints carry


class Chooser:
    """Selects at every interval, and in between where the budget is not kept.

    Args:
        model: the model that is trained.
        profile: times of its steps.
        rho: a number or a schedule; not looked at where `control` has a deadline.
        interval: epochs between two selections.
        required: True where a tensor is trained whatever its importance.
        worth: evaluates the importance.
        control: keeps the budget.
        clock: seconds now.
        probe_seconds: of evaluating the importance, at a guess.

    Attributes:
        records: one for each selection.
        evaluated: epochs before which the importance was evaluated, with a selection or without.
        profile: the times in use; another one may be put there.
        board: what TensorBoard shows; None shows nothing.
        verbose: whether a line is printed for each selection.
    """

    def __init__(
        self,
        model: ElasticMixin,
        profile: TimingProfile,
        *,
        rho: Rho,
        interval: int,
        required: np.ndarray | None,
        worth: Worth,
        control: Control,
        clock: Callable[[], float],
        probe_seconds: float,
    ) -> None:
        self.model = model
        self.profile = profile
        self.records: list[SelectionRecord] = []
        self.evaluated: list[int] = []
        self.board: Board | None = None
        self.verbose = False
        self._rho = rho
        self._interval = interval
        self._required = required
        self._worth = worth
        self._control = control
        self._deadline = control.deadline
        self._clock = clock
        self._probe_seconds = self._tracing_guessed = probe_seconds
        self._selected_at: int | None = None
        self._earlier: dict[int, tuple[int, ...]] = {}  # batches drawn before an interruption

    def check_rho(self) -> None:
        """Refuse, before the importance is evaluated, a `rho` that is too small for any.

        Raises:
            ValueError: it is; the smallest feasible one is named.
        """
        if self._deadline is not None or callable(self._rho):
            return
        if self._rho < smallest_feasible_rho(self.profile, required=self._required):
            nothing_known = np.zeros(self.profile.count)
            select_tensors(nothing_known, self.profile, self._rho, required=self._required)

    def is_due(self, epoch: int) -> bool:
        """Whether a new importance is due before that epoch."""
        if self._selected_at is None:
            self._resume()
        return self._selected_at is None or epoch - self._selected_at >= self._interval_in_time(
            self._seconds_of_one()
        )

    def select(self, epoch: int) -> None:
        """Evaluate the importance and select; keep the last selection where the probe fails."""
        rho = rho_at(self._rho, epoch)
        self._selected_at = epoch
        self.evaluated.append(epoch)
        started = self._clock()
        try:
            importance, similarity = self._worth.evaluate(self.model, self.profile.check_data)
            seconds = self._clock() - started
            self._expect_tracing(seconds)
            record = replicas.from_chief(
                self.model.distribute_strategy,
                lambda: self._chosen(epoch, rho, importance, seconds, "interval"),
            )
        except ValueError as error:
            if not self.records:
                raise
            warnings.warn(
                f"Epoch {epoch + 1} goes on with the selection of epoch "
                f"{self.records[-1].epoch + 1}: {error}",
                stacklevel=3,
            )
            return
        self._warn_if_worthless(record)
        self._train(dataclasses.replace(record, similarity=similarity))

    def select_early(self, reason: str) -> None:
        """Select anew by the importance of the present selection, if that pays."""
        present, to_come = self.records[-1], self.seconds_to_come()
        for traced in (True, False):
            # the time left depends on whether the answer must be traced
            record = self._chosen(
                self._control.pace.epoch, present.rho, present.importance, 0.0, reason, traced
            )
            if self._control.knows(record.mask) is traced:
                break
        if self._control.pays(present, record, other_seconds=to_come):
            self._train(record)

    def finish_record(self) -> None:
        """Note what has been measured under the present selection."""
        record = self.records[-1]
        achieved, retrace = self._control.ratio.achieved, record.seconds_retrace
        if retrace is None and self._control.pace.measured:
            retrace = self._control.retraced()
        self.records[-1] = dataclasses.replace(
            record,
            achieved_ratio=achieved,
            seconds_retrace=retrace,
            light_steps=self._control.light.made,
        )

    def state(self) -> dict[str, Any]:
        """The selections so far, and the importance they came from, as JSON values."""
        return {
            "records": [to_json(record) for record in self.records],
            "selected_at": self._selected_at,
            "worth": self._worth.state(),
            "evaluated": self.evaluated,
            "draws": [probe.draws[-len(self.evaluated) :] for probe in self._worth.probes],
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`; `pass_over` is to be called for every epoch that was begun."""
        self._worth.go_on(state["worth"])
        self._earlier = dict(zip(state["evaluated"], zip(*state["draws"])))
        taken = [records.from_json(record) for record in state["records"]]
        if taken:
            self._take_up(taken, state["selected_at"])

    def pass_over(self, epoch: int) -> None:
        """Draw what was drawn for the importance before that epoch, and drop it."""
        if epoch in self._earlier:
            self.evaluated.append(epoch)
            for probe, batches in zip(self._worth.probes, self._earlier[epoch]):
                probe.skip(batches)

    def seconds_to_come(self) -> float:
        """Seconds of all selections after the present one, at a guess."""
        if self._selected_at is None:
            return 0.0
        cost = self._seconds_of_one()
        interval = self._interval_in_time(cost)
        epochs = self._control.pace.epochs - self._selected_at - interval
        return max(math.ceil(epochs / interval), 0) * cost

    def _interval_in_time(self, cost: float) -> int:
        """Epochs between two selections: as asked for, or more where a deadline is short.

        Args:
            cost: seconds of a selection.
        """
        pace = self._control.pace
        epochs = pace.epochs - pace.epoch
        if self._deadline is None or epochs <= 0:
            return self._interval
        allowed = _SELECTING * (self._deadline.seconds - pace.elapsed) / epochs  # in an epoch
        if cost <= self._interval * allowed:
            return self._interval
        return math.ceil(cost / allowed) if allowed > 0.0 else pace.epochs

    def _seconds_of_one(self) -> float:
        # the first evaluation traces, the following do not
        known = [r.seconds_importance for r in self.records[1:] if r.seconds_importance]
        evaluating = min(known) if known else self._probe_seconds
        solving = max((record.seconds_solve for record in self.records), default=0.0)
        return evaluating + solving + self._seconds_traced()

    def _seconds_traced(self) -> float:
        """Of tracing a new selection; a guess before the first one."""
        known = self._control.pace.retrace
        return self._tracing_guessed if known is None else known

    def _expect_tracing(self, importance_seconds: float) -> None:
        """Learn from the first evaluation of the importance, if there is time for a step at all."""
        if self._deadline is not None and not self.records:
            self._deadline.check_first_step(self._control.pace.elapsed)
            self._tracing_guessed = max(self._probe_seconds, _TRACE * importance_seconds)

    def _rho_in_time(self, deadline: Deadline, smallest: float, is_traced: bool) -> float:
        tracing = 0.0 if is_traced else self._seconds_traced()
        return self._control.rho_in_time(
            deadline,
            t_full=self.profile.t_full,
            smallest=smallest,
            other_seconds=self.seconds_to_come() + tracing,
        )

    def _chosen(
        self,
        epoch: int,
        rho: float,
        importance: np.ndarray,
        seconds: float,
        reason: str,
        is_traced: bool = False,
    ) -> SelectionRecord:
        """What to train for `rho`, or for what meets the deadline."""
        started = self._clock()
        smallest = smallest_feasible_rho(self.profile, self._required)
        if self._deadline is not None:
            rho = self._rho_in_time(self._deadline, smallest, is_traced)
        asked = self._control.ask(rho, smallest)
        selection = select_tensors(importance, self.profile, asked, required=self._required)
        return SelectionRecord(
            epoch=epoch,
            rho=rho,
            selection=selection,
            importance=importance,
            predicted_ratio=selection.time / self.profile.t_full,
            seconds_importance=seconds,
            seconds_solve=self._clock() - started,
            reason=reason,
            step=self._control.pace.done,
        )

    def _train(self, record: SelectionRecord) -> None:
        """Train that selection from now on."""
        if self.records:
            self.finish_record()
        self.records.append(record)
        changed = not np.array_equal(record.mask, self.model.mask)
        if changed or len(self.records) == 1:
            self.model.set_mask(record.mask)
        self._control.selected(record, changed=changed)
        self._offer_light_steps(record)
        if self._selected_at is not None:
            self.model.fit_state[_KEY] = {
                "record": to_json(record),
                "selected_at": self._selected_at,
            }
        if self.verbose:
            print(records.line(record))
        if self.board is not None:
            self.board.selection(record)

    def _offer_light_steps(self, record: SelectionRecord) -> None:
        """The cheapest mask, for steps in between; the one that is traced already, if any."""
        if self._deadline is None:
            return
        mask = self._control.light.mask
        if mask is None:
            smallest = smallest_feasible_rho(self.profile, self._required)
            cheapest = select_tensors(
                record.importance, self.profile, smallest, required=self._required
            )
            mask = cheapest.mask
        ratio = self.profile.step_time(mask) / self.profile.t_full
        self._control.offer_light_steps(mask, ratio)

    def _resume(self) -> None:
        """Go on with the selection of a `fit` that Keras's own backup goes on with."""
        held = self.model.fit_state.get(_KEY)
        if held is not None:
            self._take_up([records.from_json(held["record"])], int(held["selected_at"]))

    def _take_up(self, taken: list[SelectionRecord], selected_at: int) -> None:
        record, self._selected_at = taken[-1], selected_at
        self.records.extend(taken)
        self.model.set_mask(record.mask)  # the backup may hold that of a light step
        self._control.selected(record, changed=True)
        self._offer_light_steps(record)

    def _warn_if_worthless(self, record: SelectionRecord) -> None:
        if (record.importance > 0.0).any():
            return
        only = [self.model.tensors[k].name for k in np.flatnonzero(record.mask)[:3]]
        warnings.warn(
            f"No tensor is expected to lower the loss in epoch {record.epoch + 1}: the largest "
            f"importance is {record.importance.max():g}. Only {', '.join(map(repr, only))} "
            f"({record.mask.sum()} of {len(record.mask)} tensors) will be trained. Give the "
            "callback required=elastic_tf.zoo.head_tensors(model), a larger probe or a smaller "
            "learning rate.",
            stacklevel=4,
        )
