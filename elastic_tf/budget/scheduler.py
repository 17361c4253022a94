"""The scheduler of one elastic `fit`: when to select, for which `rho`, and when to stop."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf.budget.deadline import DeadlineControl
from elastic_tf.budget.ledger import Ledger
from elastic_tf.budget.lookahead import Lookahead
from elastic_tf.budget.prior import first_step_seconds
from elastic_tf.budget.ratio import FullSteps, RatioControl
from elastic_tf.budget.settings import Settings
from elastic_tf.budget.step_costs import StepCosts
from elastic_tf.engine import replicas
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.files.json_form import to_json
from elastic_tf.head.solve import SolveHead
from elastic_tf.importance.probe import joined, size_of
from elastic_tf.importance.tracking import Worth
from elastic_tf.inputs.batches import sample_shapes
from elastic_tf.inputs.samples import known_of
from elastic_tf.memory.steps import Limit
from elastic_tf.selection import records
from elastic_tf.selection.records import ProfileRecord, SelectionRecord
from elastic_tf.selection.selector import select_plan, select_tensors, smallest_feasible_rho

if TYPE_CHECKING:
    from elastic_tf.runs.board import Board

_KEY = "selection"  # in `model.fit_state`
_TOLD = 3  # achieved ratios: the fewest whose median one disturbed step does not decide


class Scheduler:
    """Decides during one `fit`; called at the beginnings and ends of steps and epochs.

    The importance is evaluated on the probe at the beginning of an epoch; on batches of `fit`
    itself, and whatever needs one, once the first ones of the epoch are drawn. `batch_size` is that
    of one replica, where known.
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
        self._costs = StepCosts(model, settings.profile, clock)
        self._masks: list[np.ndarray] = []  # at the end of each epoch
        self._board = board
        self._ledger = ledger
        self._model = model
        self._settings = settings
        self._clock = clock
        self._ratio = RatioControl(settings.control.band)
        self._lookahead = Lookahead(model, clock)
        is_alone = replicas.count(model.distribute_strategy) == 1
        can_time = is_alone and not model.run_eagerly and model._elastic.accumulation is None
        share = settings.control.share if can_time and settings.memory is None else 0.0
        self._memory: Limit | None = None
        self._full_steps = FullSteps(self._ratio, ledger, self._lookahead, share)
        self._probe = settings.probe
        draws, gradient_draws = self._probe.draws()
        self._tracking = Worth(settings.importance, draws, gradient_draws, batch_size)
        probe_size = self._probe.size if self._tracking.needs_probe else 0
        self._takes_own = self._probe.data is None and bool(probe_size)
        self._deadline: DeadlineControl | None = None
        if settings.deadline is not None:
            probe_steps = probe_size / (batch_size or probe_size or 1)
            self._deadline = DeadlineControl(
                settings.deadline,
                ledger,
                self._costs,
                settings.interval,
                probe_steps,
                first_step_seconds(model, 1.0),
            )
        self._selected_at: int | None = None  # epoch of the last evaluation
        is_untold = settings.profile is not None and batch_size is None
        can_look = model._elastic.data is not None and not tf.distribute.has_strategy()
        self._checks_size = is_untold and can_look  # of the first batches

    @property
    def profiles(self) -> list[ProfileRecord]:
        """A record for each profile made in this `fit`."""
        return self._costs.records

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
        foretells, profiles = self._costs.profile is None, not done and self._reprofiles(epoch)
        worth, rows = None, self._model._elastic.rows
        limits = self._settings.memory is not None and self._memory is None
        evaluates = self._takes_own or limits  # only when the first batches are there
        if is_due:
            self._selected_at = epoch
            if not evaluates:
                worth = self._evaluated(epoch)

        def begin(batches: list[Any]) -> None:
            """The first batches of the epoch are drawn, where they are needed."""
            self._check_size(batches)
            if foretells:
                self._costs.foretell(epoch, batches[0])
                if self._settings.verbose and self._costs.said:
                    print(self._costs.said)
                self._check_feasible()
                self._ledger.count("foretold")
            elif profiles:
                self._costs.measure(epoch, batches[0])
            if limits:
                self._limit_memory(batches[0])
            if is_due and evaluates:
                given = batches if self._takes_own else None
                self._select(epoch, self._evaluated(epoch, given))
            elif is_due:
                self._select(epoch, worth)
            self._ledger.count("selected")
            self._ledger.resume()

        if is_due and self._takes_own:
            self._lookahead.ask(samples=self._probe.size, then=begin)
        elif foretells and rows is not None and not limits:
            begin([rows.samples.take(np.arange(rows.samples.batch_size))])
        elif foretells or profiles or limits:
            self._lookahead.ask(then=begin)
        else:
            begin([])
            if self._checks_size:  # two: in a shuffled dataset the smaller one may come first
                self._lookahead.ask(2, then=self._check_size)

    def step_begins(self) -> None:
        """Before the train function is called."""
        if not self._ledger.done:  # what other callbacks did before an epoch is no part of its step
            self._ledger.count("head, other callbacks")
            self._ledger.resume()
        self._lookahead.attach()

    def steps_made(self, count: int) -> None:
        """Measure; select anew where the budget is not kept; stop where the time is over."""
        self._ledger.step(count)
        record = self.selections[-1]
        if self._deadline is not None:
            is_over = self._deadline.stops(self._model, self._seconds_beside())
            if is_over or self._ledger.done == self._ledger.steps:
                return
            if self._deadline.is_off(record.predicted_ratio, record.is_full):
                self._select_early("deadline")
        elif self._full_steps.share:
            self._full_steps.step_was_made(is_full=record.is_full)
            self._ledger.count("timed")
            retrace = self._ledger.retrace or 0.0
            if self._ratio.is_off(record.rho) and self._full_steps.can_afford(retrace):
                self._ratio.learn()
                self._select_early("ratio")

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
            self._deadline.stops(self._model, self._seconds_beside())

    def end(self) -> None:
        """`fit` ends."""
        if self._board is not None:
            self._board.picture(self._masks, self._ledger.epoch, is_last=True)
            self._board.close()
        self._ledger.count("ends of epochs")
        if len(self._ratio.ratios) >= _TOLD and not self.selections[-1].is_full:
            self._ratio.learn()
            self._costs.remember(self._ratio.delivered)
        if self._deadline is not None:
            self._deadline.end()

    def state(self) -> dict[str, Any]:
        """All that a `fit` needs to go on, as JSON values."""
        return {
            "records": [to_json(record) for record in self.selections],
            "masks": [mask.tolist() for mask in self._masks],
            "selected_at": self._selected_at,
            "tracking": self._tracking.state(),
            "ratio": self._ratio.state(),
            "spent": self._full_steps.spent,
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
        self._full_steps.spent = state["spent"]
        self._ledger.already(state["elapsed"])

    def pass_over(self, epoch: int) -> None:
        """Draw what the probe drew before that epoch, and drop it."""
        self._tracking.pass_over(epoch)

    # What is due at the beginning of an epoch.

    def _is_due(self, epoch: int) -> bool:
        """Whether a new importance is; with a deadline only where there is time for it."""
        if self._selected_at is None:
            return True
        if epoch - self._selected_at < self._settings.interval or self._is_settled:
            return False
        return self._deadline is None or self._deadline.has_time_to_select()

    @property
    def _is_settled(self) -> bool:
        """Whether another selection would be like the one before it."""
        settings = self._settings
        if self._tracking.needs_probe or callable(settings.rho):
            return False
        return settings.deadline is None and settings.control.reprofile_every is None

    def _reprofiles(self, epoch: int) -> bool:
        every = self._settings.control.reprofile_every
        passed = epoch - self.selections[0].epoch if self.selections else 0
        return every is not None and passed > 0 and passed % every == 0

    def _limit_memory(self, batch: Any) -> None:
        """Know what a step on such a batch takes, and how many samples can be evaluated at once."""
        settings, rows = self._settings, self._model._elastic.rows
        assert settings.memory is not None
        beside: Any = {} if rows is None else {"beside": rows.held_bytes}
        self._memory = Limit(settings.memory, self._model, batch, **beside)
        if self._tracking.needs_probe:
            self._tracking.at_most(self._memory.probe_rows())

    def _check_size(self, batches: list[Any]) -> None:
        """Compare the profile with the first batches, once, where the data tell no size."""
        if self._checks_size and batches and self._settings.profile is not None:
            self._checks_size = False
            self._settings.profile.check_data(batch_size=max(map(size_of, batches)))

    @property
    def _sizes_differ(self) -> bool:
        """Whether samples may be of several sizes: neither the model nor the data tell of one."""
        inputs = sample_shapes(getattr(self._model, "inputs", None) or [])
        given = known_of(self._model._elastic.data)[1] or []
        is_fixed = inputs and not any(None in shape for shape in inputs)
        return not is_fixed and any(None in shape for shape in given)

    def _check_feasible(self) -> None:
        """Refuse, before the importance is evaluated, what no selection can keep."""
        settings = self._settings
        profile = self._costs.of_plans(self._epochs_to_come)
        if self._deadline is not None:
            least = None if profile is None else smallest_feasible_rho(profile, settings.required)
            self._deadline.check_feasible(least)
        elif profile is not None and not callable(settings.rho):
            rho = settings.rho_at(0)
            if rho < smallest_feasible_rho(profile, settings.required):  # the selector says so best
                select_tensors(np.zeros(profile.count), profile, rho, required=settings.required)

    @property
    def _epochs_to_come(self) -> int:
        """Epochs until the next selection."""
        left = self._ledger.epochs - self._ledger.epoch
        return left if self._is_settled else min(self._settings.interval, left)

    # Selecting.

    def _evaluated(
        self, epoch: int, batches: list[Any] | None = None
    ) -> tuple[np.ndarray, float | None, float] | None:
        """The importance, its similarity to that before, and the seconds that it took.

        None, with a warning, where it fails and there is a selection.
        """
        started = self._clock()
        given = None if batches is None else joined(batches, self._probe.size)
        profile = self._costs.profile

        def check(*, batch_size: int | None, input_shape: Any) -> None:
            if profile is not None:
                shape = None if self._sizes_differ else input_shape
                profile.check_data(batch_size=batch_size, input_shape=shape)

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
        if self._deadline is not None:
            self._deadline.evaluated(epoch, seconds if self.selections else None)
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
        if record.selection.plan == present.selection.plan:
            self._ratio.selected(self._ratio.predicted)  # measure anew
            return
        self._full_steps.spent += self._ledger.retrace or 0.0
        self._train(record)

    def _chosen(
        self, epoch: int, rho: float, importance: np.ndarray, reason: str, seconds: float = 0.0
    ) -> SelectionRecord:
        """What to train for `rho`, or for what meets the deadline."""
        required = self._settings.required
        profile = self._costs.of_plans(self._epochs_to_come)
        steps = self._costs.of_plans(self._epochs_to_come, filling=False)
        assert profile is not None and steps is not None
        started = self._clock()
        smallest = smallest_feasible_rho(profile, required)
        if self._deadline is not None:
            present = self.selections[-1].predicted_ratio if self.selections else None
            rho = asked = self._deadline.rho(smallest, present, self._seconds_beside())
        else:
            asked = self._ratio.ask(rho)
        # the first selection refuses a `rho` that is too small; later ones do what can be done
        asked = min(max(asked, smallest if rho >= smallest or self.selections else rho), 1.0)
        if importance.ndim == 2:  # a column for each mode
            told: Any = {"modes": self._tracking.modes, "channels": self._tracking.channels}
            told.update(required=required, memory=self._memory)
            selection = select_plan(importance, profile, asked, **told)
        else:
            selection = select_tensors(
                importance,
                profile,
                asked,
                required=required,
                strategy=self._tracking.strategy,
                memory=self._memory,
            )
        return SelectionRecord(
            epoch=epoch,
            rho=rho,
            selection=selection,
            importance=importance,
            predicted_ratio=steps.step_time(selection.plan) / steps.t_full,
            seconds_importance=seconds,
            seconds_solve=self._clock() - started,
            reason=reason,
            step=self._ledger.done,
        )

    def _seconds_beside(self) -> float:
        """What solving the head will take: as long as a forward pass over the samples, about.

        At the beginning and at the end of `fit`.
        """
        rows, profile = self._model._elastic.rows, self._costs.profile
        given = tf.nest.flatten(self._model._elastic.callbacks or [])
        heads = [one for one in given if isinstance(one, SolveHead)]
        times = sum((one.solution is None) + one.again for one in heads)
        if rows is None or profile is None:
            return 0.0
        return times * 1e-6 * profile.t_forward * rows.samples.rows / rows.samples.batch_size

    def _train(self, record: SelectionRecord) -> None:
        """Train that selection from now on."""
        if self.selections:
            self._finish_record()
        elif self._sizes_differ and self._costs.profile is not None:
            warnings.warn(
                f"The profile is of samples of {list(self._costs.profile.input_shape)}, and the "
                "data may have other sizes. `rho` is kept for that size: steps of another size "
                "take another share of their full step.",
                stacklevel=2,
            )
        if self.selections and record.selection.plan == self._model.plan:
            record = dataclasses.replace(record, seconds_retrace=0.0)
        else:
            self._model.set_plan(record.selection.plan)
            self._ledger.count("selected")
            self._model.cache_prefix(self._epochs_to_come)
            self._ledger.count("kept")
            self._ledger.plan(record.predicted_ratio)
        self.selections.append(record)
        self._ratio.selected(record.predicted_ratio)
        if self._deadline is not None:
            self._deadline.selected()
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
        known = [record.seconds_importance for record in taken[1:] if record.seconds_importance]
        if self._deadline is not None:
            self._deadline.evaluated(selected_at, min(known) if known else None)
        self._model.set_plan(taken[-1].selection.plan)
        self._model.cache_prefix(self._epochs_to_come)
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
