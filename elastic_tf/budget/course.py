"""The course of one elastic `fit`: what is measured, chosen, kept and shown, from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf.backup.recovery import Recovery
from elastic_tf.budget.choosing import Chooser
from elastic_tf.budget.control import Control
from elastic_tf.budget.reprofiling import Reprofiling
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.files.ranges import from_ranges, to_ranges
from elastic_tf.selection import records
from elastic_tf.selection.records import ProfileRecord, SelectionRecord
from elastic_tf.selection.selector import smallest_feasible_rho

if TYPE_CHECKING:
    from elastic_tf.runs.board import Board


class Course:
    """What happens at the beginnings and ends of steps and epochs.

    Args:
        model: the model that is trained.
        chooser: selects.
        control: keeps the budget.
        reprofiling: profiles the device again.
        required: True where a tensor is trained whatever its importance; bool, shape (N,).
        reports_ratio: whether the achieved ratio is among the logs of an epoch.

    Attributes:
        masks: at the end of each epoch.
        board: what TensorBoard shows; None shows nothing.
        recovery: backs the training up; None does not.
        is_anew: whether it leaves a backup that is there.
    """

    def __init__(
        self,
        model: ElasticMixin,
        *,
        chooser: Chooser,
        control: Control,
        reprofiling: Reprofiling,
        required: np.ndarray | None,
        reports_ratio: bool,
    ) -> None:
        self.masks: list[np.ndarray] = []
        self.board: Board | None = None
        self.recovery: Recovery | None = None
        self.is_anew = False
        self._model = model
        self._chooser = chooser
        self._control = control
        self._deadline = control.deadline
        self._reprofiling = reprofiling
        self._required = required
        self._reports_ratio = reports_ratio
        self._step = 0  # the first one of a call
        self._told_of_light_steps = False

    @property
    def selections(self) -> list[SelectionRecord]:
        """One record for each selection."""
        return self._chooser.records

    @property
    def profiles(self) -> list[ProfileRecord]:
        """One record for each profile made in it."""
        return self._reprofiling.records

    def ratios(self) -> dict[str, float]:
        """What is asked for and achieved now, for the progress bar."""
        return records.ratios(self._chooser.records[-1], self._control.ratio.achieved)

    def begin(self) -> None:
        """Go on with a `fit` that was interrupted, if there was one."""
        if self.recovery is not None:
            said = self.recovery.begin(anew=self.is_anew)
            if said is not None and self._chooser.verbose:
                print(said)

    def state(self) -> dict[str, Any]:
        """All that is decided from, as JSON values."""
        return {
            "chooser": self._chooser.state(),
            "control": self._control.state(),
            "masks": [to_ranges(mask) for mask in self.masks],
            "began": self._reprofiling.first_epoch,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._chooser.go_on(state["chooser"])
        self._control.go_on(state["control"])
        self.masks.extend(from_ranges(mask, len(self._model.tensors)) for mask in state["masks"])
        self._reprofiling.first_epoch = state["began"]

    def pass_over(self, epoch: int) -> None:
        """Draw what was drawn before that epoch, and drop it."""
        self._chooser.pass_over(epoch)

    def epoch_begins(self, epoch: int) -> None:
        """Profile and select anew where their intervals have passed."""
        pace = self._control.pace
        pace.epoch_begins(epoch)
        pace.done = 0 if self.recovery is None else self.recovery.epoch_begins(epoch)
        if not pace.done:
            self._choose(epoch)
        self._control.timer.attach()
        pace.resume()

    def step_begins(self, step: int) -> None:
        """Keep the number of the first step of a call."""
        self._step = step

    def steps_made(self, step: int, logs: dict[str, Any] | None) -> None:
        """Measure; select anew where the budget is not kept."""
        control, count = self._control, step - self._step + 1
        control.called(count)
        if control.pace.done != control.pace.steps:
            if control.is_over():
                self._stop_early()
            else:
                self._keep_budget()
        else:
            control.end_light_steps()
            control.timer.attach()
        if self.recovery is not None:
            self.recovery.steps_made(count, logs)
        control.pace.resume()

    def epoch_ends(self, epoch: int, logs: dict[str, Any] | None) -> None:
        """Note what was measured."""
        self._chooser.finish_record()
        record = self._chooser.records[-1]
        self.masks.append(record.mask)
        if logs is not None:
            for name in records.LOGGED:
                value = getattr(record, name)
                if name != "achieved_ratio" or self._reports_ratio:
                    logs[name] = float("nan") if value is None else value
        if self.board is not None:
            self.board.epoch(epoch, record, logs or {})
            if record.epoch == epoch:
                self.board.picture(self.masks, epoch)
                self._control.reserve = self.board.seconds_picture
        if self._control.is_over():
            self._stop_early()

    def release_steps(self) -> None:
        """Time no further step."""
        self._control.timer.detach()

    def end(self) -> None:
        """Show and keep what came out."""
        self._control.pace.ends()
        if self.board is not None:
            self.board.picture(self.masks, self._control.pace.epoch, is_last=True)
            self.board.close()
        if self.recovery is not None:
            self.recovery.end()

    def ended(self) -> None:
        """`fit` is over, with all that Keras does at its end: say so if the deadline was missed."""
        if self._deadline is not None:
            made = self._chooser.records
            selecting = sum(record.seconds_importance + record.seconds_solve for record in made)
            self._deadline.warn_if_late(self._control.pace, selecting=selecting)

    def _choose(self, epoch: int) -> None:
        """What is due before an epoch."""
        made, deadline, pace = self._chooser.records, self._deadline, self._control.pace
        is_first = not made
        if is_first and deadline is not None:
            deadline.check(*self._expected(), spent=pace.elapsed)
        if self._reprofiling.is_due(epoch):
            self._chooser.profile = self._reprofiling.measure(epoch)
        if self._chooser.is_due(epoch):
            self._chooser.select(epoch)
        if is_first and deadline is not None:
            expected = self._expected()
            print(deadline.expectation(*expected, rho=made[0].rho, spent=pace.elapsed))
            deadline.warn_if_short(*expected, spent=pace.elapsed)

    def _expected(self) -> tuple[int | None, float, float]:
        """Steps of the training, their seconds in full by the profile, the smallest rho."""
        steps, profile = self._control.pace.steps_left, self._chooser.profile
        least = smallest_feasible_rho(profile, required=self._required)
        return steps, (steps or 0) * 1e-6 * profile.t_full, least

    def _keep_budget(self) -> None:
        """Between two steps: select anew, or take turns with light steps."""
        control, to_come = self._control, self._chooser.seconds_to_come()
        reason = control.reason(self._chooser.records[-1], other_seconds=to_come)
        if reason is not None:
            control.end_light_steps()
            self._chooser.select_early(reason)
        control.take_turns(other_seconds=to_come)
        if not self._told_of_light_steps:
            predicted = 1e-6 * self._chooser.records[-1].selection.time
            self._told_of_light_steps = control.warn_if_light(
                predicted_seconds=predicted, other_seconds=to_come
            )
        control.timer.attach()

    def _stop_early(self) -> None:
        """The last resort against being late."""
        pace = self._control.pace
        if self._deadline is not None and not self._model.stop_training:
            print(self._deadline.stopping(pace.steps_left or 0, elapsed=pace.elapsed))
            self._model.stop_training = True
