"""The scheduler of one elastic `fit`: when to select, for which `rho`, and when to stop."""

from __future__ import annotations

import dataclasses
import math
import statistics
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf.budget.ledger import Ledger
from elastic_tf.budget.lookahead import Lookahead
from elastic_tf.budget.ratio import RatioControl
from elastic_tf.budget.settings import Settings
from elastic_tf.engine import replicas
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.files.json_form import to_json
from elastic_tf.importance.probe import joined
from elastic_tf.importance.tracking import Worth
from elastic_tf.selection import records
from elastic_tf.selection.records import ProfileRecord, SelectionRecord
from elastic_tf.selection.selector import select_tensors, smallest_feasible_rho
from elastic_tf.timing.profiler import Profiler

if TYPE_CHECKING:
    from elastic_tf.runs.board import Board

_AIM = 0.97  # of a deadline: what is planned for; the rest is for steps slower than the last ones
_LATE = 0.01  # of a deadline: what it may be passed by
_SELECTING = 0.2  # of a deadline's time at most: what selections after the first may take
_ERROR = 0.02  # of a predicted ratio, mean absolute: ResNet50 0.021, MobileNetV2 0.030 (bench.py)
_TIMED = 3  # steps that a full step is compared with: those right before it
REPEATS = 2  # steps of each kind in a profile during training: 0.3 % of 1,500 steps
_KEY = "selection"  # in `model.fit_state`


class Scheduler:
    """Decides during one `fit`; called at the beginnings and ends of steps and epochs.

    The importance is evaluated on the probe at the beginning of an epoch; on batches of `fit`
    itself, and whatever needs one, once the first ones of the epoch are drawn.

    Args:
        model: the model that is trained.
        settings: what is asked for.
        ledger: the clock of this `fit`.
        batch_size: samples in a batch of one replica, where known.
        clock: seconds now.
        board: what TensorBoard shows; None shows nothing.

    Attributes:
        selections: a record for each selection.
        profiles: a record for each profile made in this `fit`.
    """

    def __init__(
        self,
        model: ElasticMixin,
        settings: Settings,
        ledger: Ledger,
        *,
        batch_size: int | None,
        clock: Callable[[], float],
        board: Board | None = None,
    ) -> None:
        self.selections: list[SelectionRecord] = []
        self.profiles: list[ProfileRecord] = []
        self._masks: list[np.ndarray] = []  # at the end of each epoch
        self._board = board
        self._ledger = ledger
        self._model = model
        self._settings = settings
        self._profile = settings.profile
        self._deadline = settings.deadline
        self._clock = clock
        self._ratio = RatioControl(settings.control.band)
        self._lookahead = Lookahead(model, clock)
        is_alone = replicas.count(model.distribute_strategy) == 1
        can_time = is_alone and not model.run_eagerly and model._elastic.accumulation is None
        # a deadline needs no full step
        self._share = settings.control.share if can_time and self._deadline is None else 0.0
        self._spent = 0.0  # seconds of that share
        self._timed_at = 0.0  # when a full step was timed last
        self._is_timing = False
        self._probe = settings.probe
        self._takes_own = self._probe.data is None
        draws, gradient_draws = self._probe.draws()
        self._tracking = Worth(
            settings.importance,
            draws,
            gradient_probe=gradient_draws,
            smoothing=settings.control.smoothing,
            micro_batch_size=batch_size,
        )
        self._selected_at: int | None = None  # epoch of the last evaluation
        self._profiler: Profiler | None = None
        self._batch_size = batch_size
        self._selected_seconds = 0.0  # after the beginning, of the last selection
        self._look_at = 0  # step under a plan at which the deadline is looked at

    def ratios(self) -> dict[str, float]:
        """What is asked for and achieved now, for the progress bar."""
        if not self.selections:
            return {}
        record, achieved = self.selections[-1], self._ratio.achieved
        if achieved is None:
            return {"rho": record.rho, "predicted": record.predicted_ratio}
        return {"rho": record.rho, "achieved": achieved}

    def epoch_begins(self, epoch: int, done: int = 0) -> None:
        """Evaluate what is due; `done`: steps of the epoch made before an interruption."""
        self._ledger.epoch_begins(epoch, done)
        held = self._model.fit_state.get(_KEY)
        if self._selected_at is None and held is not None:  # Keras's own backup goes on with `fit`
            self._take_up([records.from_json(held["record"])], int(held["selected_at"]))
        if not self.selections:
            self._check_feasible()
        is_due = not done and self._is_due(epoch)
        profiles = self._profile is None or (not done and self._reprofiles(epoch))
        worth = None
        if is_due:
            self._selected_at = epoch
            if not self._takes_own:
                worth = self._evaluated(epoch)

        def begin(batches: list[Any]) -> None:
            """The first batches of the epoch are drawn, where they are needed."""
            if profiles:
                self._measure_profile(epoch, batches)
            if is_due:
                self._select(epoch, self._evaluated(epoch, batches) if self._takes_own else worth)
            self._ledger.resume()

        if is_due and self._takes_own:
            self._lookahead.ask(samples=self._probe.size, then=begin)
        elif profiles:
            self._lookahead.ask(then=begin)
        else:
            begin([])

    def step_begins(self) -> None:
        """Before the train function is called."""
        self._lookahead.attach()

    def steps_made(self, count: int) -> None:
        """Measure; select anew where the budget is not kept; stop where the time is over."""
        ledger = self._ledger
        ledger.step(count)
        if self._deadline is not None:
            if not self._stops_if_late(self._deadline) and ledger.done != ledger.steps:
                self._keep_deadline(self._deadline)
        elif self._share:
            self._keep_ratio()

    def epoch_ends(self, epoch: int, logs: dict[str, Any] | None) -> None:
        """Note what was measured."""
        self._finish_record()
        record = self.selections[-1]
        self._masks.append(record.mask)
        if logs is not None:
            logs["rho"], logs["predicted_ratio"] = record.rho, record.predicted_ratio
            # once measured it stays among the logs: Keras's CSVLogger asks for the same at each
            measured = [r.achieved_ratio for r in self.selections if r.achieved_ratio is not None]
            if measured:
                logs["achieved_ratio"] = measured[-1]
        if self._board is not None:
            self._board.epoch(epoch, record, logs or {})
            if record.epoch == epoch:
                self._board.picture(self._masks, epoch)
        if self._deadline is not None:
            self._stops_if_late(self._deadline)

    def end(self) -> None:
        """`fit` ends."""
        if self._board is not None:
            self._board.picture(self._masks, self._ledger.epoch, is_last=True)
            self._board.close()
        late = self._ledger.elapsed - (self._deadline or math.inf)
        if late > _LATE * (self._deadline or 0.0):
            warnings.warn(
                f"`fit` took {late:.1f} s more than its deadline of {self._deadline:g} s. Train "
                "fewer epochs, or validate on less data: the first validation cannot be foreseen.",
                stacklevel=3,
            )

    def state(self) -> dict[str, Any]:
        """All that a `fit` needs to go on, as JSON values."""
        return {
            "records": [to_json(record) for record in self.selections],
            "masks": [mask.tolist() for mask in self._masks],
            "selected_at": self._selected_at,
            "tracking": self._tracking.state(),
            "ratio": self._ratio.state(),
            "spent": self._spent,
            "elapsed": self._ledger.elapsed,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`; `pass_over` is to be called for every epoch that was begun.

        The time without power does not count.
        """
        self._tracking.go_on(state["tracking"])
        self._masks.extend(np.array(mask) for mask in state["masks"])
        taken = [records.from_json(record) for record in state["records"]]
        if taken:
            self._take_up(taken, state["selected_at"])
        self._ratio.go_on(state["ratio"])
        self._spent = state["spent"]
        self._ledger.already(state["elapsed"])

    def pass_over(self, epoch: int) -> None:
        """Draw what the probe drew before that epoch, and drop it."""
        self._tracking.pass_over(epoch)

    # What is due at the beginning of an epoch.

    def _is_due(self, epoch: int) -> bool:
        """Whether a new importance is; with a deadline only where there is time for it."""
        if self._selected_at is None:
            return True
        if epoch - self._selected_at < self._settings.interval:
            return False
        since = self._ledger.elapsed - self._selected_seconds
        return self._deadline is None or self._seconds_of_one() <= _SELECTING * since

    def _reprofiles(self, epoch: int) -> bool:
        every = self._settings.control.reprofile_every
        passed = epoch - self.selections[0].epoch if self.selections else 0
        return every is not None and passed > 0 and passed % every == 0

    def _measure_profile(self, epoch: int, batches: list[Any]) -> None:
        """The device as it is now; the first time also traces the steps measured."""
        started, is_first, before = self._clock(), self._profiler is None, self._profile
        if self._settings.verbose:
            print("Measuring the training step on this device ...", flush=True)
        if self._profiler is None:
            x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batches[0])
            known = None if before is None else before.calibration
            self._profiler = Profiler(self._model, x, y, sample_weight=weight, calibration=known)
        if before is None:
            self._profile = self._profiler.measure()
            self._check_feasible()
        else:
            self._profile = self._profiler.measure(repeats=REPEATS, settled=False)
        seconds = self._clock() - started
        self.profiles.append(ProfileRecord(epoch, self._profile, seconds, is_first))

    def _check_feasible(self) -> None:
        """Refuse, before the importance is evaluated, what no selection can keep."""
        steps = self._ledger.steps_left
        if self._deadline is not None and steps is None:
            raise ValueError(
                "A deadline needs to know how many steps an epoch has. Received: data of unknown "
                f"length with Deadline({self._deadline:g}). Give `fit` steps_per_epoch, or the "
                "dataset tf.data.experimental.assert_cardinality."
            )
        if self._profile is None or callable(self._settings.rho):
            return
        profile, required = self._profile, self._settings.required
        least = smallest_feasible_rho(profile, required)
        if self._deadline is None:
            if self._settings.rho_at(0) < least:  # the selector says so best
                nothing = np.zeros(profile.count)
                select_tensors(nothing, profile, self._settings.rho_at(0), required=required)
            return
        needed = self._ledger.elapsed + least * (steps or 0) * 1e-6 * profile.t_full
        if needed > self._deadline:
            raise ValueError(
                f"The deadline is impossible. Received: Deadline({self._deadline:g}) for {steps} "
                f"steps. At the smallest feasible rho, {least:.3f}, they take until second "
                f"{needed:.1f}, selecting, tracing and validation not counted. Give more seconds "
                "or train fewer epochs."
            )

    # Selecting.

    def _evaluated(
        self, epoch: int, batches: list[Any] | None = None
    ) -> tuple[np.ndarray, float | None, float] | None:
        """The importance, its similarity to that before, and the seconds that it took.

        None, with a warning, where it fails and there is a selection.
        """
        started = self._clock()
        given = None if batches is None else joined(batches, self._probe.size)
        check = (lambda **_: None) if self._profile is None else self._profile.check_data
        try:
            importance, similarity = self._tracking.evaluate(self._model, check, epoch, given)
        except ValueError as error:
            if not self.selections:
                raise
            warnings.warn(
                f"Epoch {epoch + 1} goes on with the selection of epoch "
                f"{self.selections[-1].epoch + 1}: {error}",
                stacklevel=3,
            )
            return None
        return importance, similarity, self._clock() - started

    def _select(self, epoch: int, worth: tuple[np.ndarray, float | None, float] | None) -> None:
        """Select by what was just evaluated; keep what there is where that failed."""
        if worth is None:
            return
        importance, similarity, seconds = worth
        elapsed = self._ledger.elapsed
        if self._deadline is not None and elapsed >= self._deadline and not self.selections:
            raise ValueError(
                "The deadline is over before the first step. Received: "
                f"Deadline({self._deadline:g}), and {elapsed:.1f} seconds until the first "
                "importance was evaluated. Give more seconds or a smaller probe."
            )
        rho = self._settings.rho_at(epoch)
        if self._ratio.is_off(rho):
            self._ratio.learn()
        record = replicas.from_chief(
            self._model.distribute_strategy,
            lambda: self._chosen(epoch, rho, importance, "interval", seconds),
        )
        self._train(dataclasses.replace(record, similarity=similarity))

    def _select_early(self, reason: str) -> None:
        """Select anew by the importance of the present selection, unless that is the same."""
        present = self.selections[-1]
        record = self._chosen(self._ledger.epoch, present.rho, present.importance, reason)
        if np.array_equal(record.mask, present.mask):
            self._ratio.selected(self._ratio.predicted)  # measure anew
            return
        self._spent += self._ledger.retrace or 0.0
        self._train(record)

    def _chosen(
        self, epoch: int, rho: float, importance: np.ndarray, reason: str, seconds: float = 0.0
    ) -> SelectionRecord:
        """What to train for `rho`, or for what meets the deadline."""
        profile, required = self._profile, self._settings.required
        assert profile is not None
        started = self._clock()
        smallest = smallest_feasible_rho(profile, required)
        if self._deadline is not None:
            rho = asked = self._rho_in_time(self._deadline, smallest)
        else:
            asked = self._ratio.ask(rho)
        # the first selection refuses a `rho` that is too small; later ones do what can be done
        asked = min(max(asked, smallest if rho >= smallest or self.selections else rho), 1.0)
        selection = select_tensors(importance, profile, asked, required=required)
        return SelectionRecord(
            epoch=epoch,
            rho=rho,
            selection=selection,
            importance=importance,
            predicted_ratio=selection.time / profile.t_full,
            seconds_importance=seconds,
            seconds_solve=self._clock() - started,
            reason=reason,
            step=self._ledger.done,
        )

    def _train(self, record: SelectionRecord) -> None:
        """Train that selection from now on."""
        if self.selections:
            self._finish_record()
        if self.selections and np.array_equal(record.mask, self._model.mask):
            record = dataclasses.replace(record, seconds_retrace=0.0)
        else:
            self._model.set_mask(record.mask)
            left = self._ledger.epochs - self._ledger.epoch
            self._model.cache_prefix(min(self._settings.interval, left))
            self._ledger.plan(record.predicted_ratio)
        self.selections.append(record)
        self._ratio.selected(record.predicted_ratio)
        self._selected_seconds = self._ledger.elapsed
        self._look_at = 0
        self._model.fit_state[_KEY] = {
            "record": to_json(record),
            "selected_at": self._selected_at,
        }
        if self._settings.verbose:
            print(records.line(record))
        if self._board is not None:
            self._board.selection(record)

    def _take_up(self, taken: list[SelectionRecord], selected_at: int) -> None:
        self.selections.extend(taken)
        self._selected_at = selected_at
        self._model.set_mask(taken[-1].mask)
        self._ledger.plan(taken[-1].predicted_ratio)
        self._ratio.selected(taken[-1].predicted_ratio)

    def _finish_record(self) -> None:
        """Note what has been measured under the present selection."""
        record = self.selections[-1]
        seconds = record.seconds_retrace
        if seconds is None and self._ledger.own:
            seconds = self._ledger.retrace
        self.selections[-1] = dataclasses.replace(
            record, achieved_ratio=self._ratio.achieved, seconds_retrace=seconds
        )

    # Keeping the ratio.

    def _keep_ratio(self) -> None:
        """Time a full step where that is due; select anew where the ratio is surely off."""
        lookahead = self._lookahead
        if self._is_timing and not lookahead.is_active:
            self._is_timing = False
            if len(lookahead.seconds) > _TIMED:
                started = self._ledger.elapsed
                full = lookahead.full_step_seconds()
                self._timed_at = self._ledger.elapsed
                self._spent += self._timed_at - started
                if full:
                    self._ratio.ratios.append(statistics.median(lookahead.seconds[-_TIMED:]) / full)
        elif not lookahead.is_active and self._is_full_step_due():
            self._is_timing = True
            lookahead.ask(batches=_TIMED + 1)
        rho = self.selections[-1].rho
        if self._ratio.is_off(rho) and self._can_afford(self._ledger.retrace or 0.0):
            self._ratio.learn()
            self._select_early("ratio")

    def _is_full_step_due(self) -> bool:
        ledger = self._ledger
        if not ledger.is_settled or self.selections[-1].mask.all():
            return False
        cost = 2.0 * (ledger.full_seconds or 0.0)
        if not self._lookahead.is_traced:
            cost += (ledger.retrace or 0.0) + (ledger.full_seconds or 0.0)
        since = ledger.elapsed - self._timed_at
        is_waited_for = since * self._share >= cost or not self._ratio.is_enough
        return is_waited_for and self._can_afford(cost)

    def _can_afford(self, seconds: float) -> bool:
        """Whether so much more stays within the share of the training time."""
        left = (self._ledger.steps_left or 0) * (self._ledger.step_seconds or 0.0)
        return self._spent + seconds <= self._share * (self._ledger.elapsed + left)

    # Keeping a deadline.

    def _rho_in_time(self, deadline: float, smallest: float) -> float:
        """Step time / full step time that ends on time with another plan, `smallest` at least."""
        seconds = self._seconds_for_steps(deadline) - (self._ledger.retrace or 0.0)
        full = (self._ledger.steps_left or 0) * self._full_seconds
        return min(max(seconds / full, smallest), 1.0) if full > 0.0 else 1.0

    def _keep_deadline(self, deadline: float) -> None:
        """Select anew in between where the planned end is off, and that pays for tracing."""
        ledger, record = self._ledger, self.selections[-1]
        if not ledger.is_settled or ledger.own < self._look_at:
            return
        left = ledger.steps_left or 0
        self._look_at = ledger.own + left // 10
        full = left * self._full_seconds
        off = self._seconds_for_steps(deadline) - full * record.predicted_ratio
        known = self._profile.uncertainty if self._profile else 0.0
        least = max(full * max(known, _ERROR), ledger.retrace or 0.0)
        if abs(off) > least and not (off > 0.0 and record.mask.all()):
            self._select_early("deadline")

    def _stops_if_late(self, deadline: float) -> bool:
        """Stop where one more step, and the end of its epoch, would end after the deadline."""
        ledger = self._ledger
        is_last = not ledger.steps_left or ledger.elapsed + ledger.before_the_end <= deadline
        if not is_last and not self._model.stop_training:
            self._model.stop_training = True
            warnings.warn(
                f"Training stops {ledger.steps_left} steps early, or it would end after the "
                f"deadline of {deadline:g} s. Give more seconds or train fewer epochs.",
                stacklevel=4,
            )
        return not is_last

    def _seconds_for_steps(self, deadline: float) -> float:
        """What is left for the steps to come, if the training ends where it is planned to."""
        ledger = self._ledger
        left = _AIM * deadline - ledger.elapsed - (ledger.epochs - ledger.epoch) * ledger.ending
        epochs = ledger.epochs - (self._selected_at or 0) - self._settings.interval
        selections = max(math.ceil(epochs / self._settings.interval), 0)
        return left - min(selections * self._seconds_of_one(), _SELECTING * max(left, 0.0))

    def _seconds_of_one(self) -> float:
        """Of a selection to come: the first evaluation of the importance traces, others do not."""
        known = [r.seconds_importance for r in self.selections[1:] if r.seconds_importance]
        samples = self._probe.size / (self._batch_size or self._probe.size)
        evaluating = min(known) if known else samples * self._full_seconds
        return evaluating + (self._ledger.retrace or 0.0)

    @property
    def _full_seconds(self) -> float:
        """Of a full step: measured, or else by the profile."""
        measured = self._ledger.full_seconds
        if measured is None:
            return 1e-6 * self._profile.t_full if self._profile else 0.0
        return measured
