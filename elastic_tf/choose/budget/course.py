"""The course of a training in so many seconds: head, last tensors at a falling rate, head again.

What is trained is chosen once, by times that are foretold. From then on the clock decides: the rate
falls to zero until the seconds are over, whatever a step takes, so that a slower machine makes
fewer steps of the same training. The head is solved once more on what was trained, for the one that
gradients leave behind is worse than the best of the same features.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.choose.budget.ledger import Pace
from elastic_tf.choose.budget.prior import first_step_seconds, prior_profile
from elastic_tf.choose.importance import depth
from elastic_tf.choose.selection import Selection, select_tensors, smallest_feasible_rho
from elastic_tf.lite.ridge import is_as_good
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train.batches import is_batched, sample_shapes
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.prefix import Forward
from elastic_tf.train.engine.state import judged
from elastic_tf.train.head.features import predicted
from elastic_tf.train.head.solve import (
    AGAIN,
    HeadSolution,
    begin,
    solve_again,
    solve_between,
    solve_head,
)
from elastic_tf.train.head.targets import of_loss
from elastic_tf.train.samples import READ, Samples, read

RATE = 3.5e-4  # of Shampoo at its highest, whatever is trained
WARM_UP = 0.15  # of the time: the rate rises
# More time goes first into more tensors, each sample seen _FEW times, up to this share of a full
# step; then into more epochs; when there are all of them, into more tensors again.
_SHARE, _FEW = 0.4, 1.3
# Of the time: what validations after each epoch may take, and looking at weights between.
_VALIDATING = 0.05
# Of the time: what computing features of more than one view may take. On birds, one seed, one view
# was 1.5 points ahead on test images where two take 0.4 of it (39 s), 1.8 behind where 0.2 (60 s).
_KEEPING = 0.25
_LEAST_EPOCHS = 0.05  # of full training: 0.7 to 2.8 points on four image sets
# Passes over all samples that compute what is kept, and the head from it, twice: so many, and so
# many times the share that is trained; and traces that they take. Of MobileNet 1.6 passes at 0.15
# and 1.9 at 0.4, 0.5 to 2 traces.
_PASSES, _TRACES = (1.4, 1.2), 1.2
_SPARE, _LATE = 0.01, 0.02  # of the seconds: spared; as much later it may end
_GIVEN, _HEAD = "the network as given", "the solved head"


class _TooLate(Exception):
    """The head took the time in which to train."""


class Course(tf.keras.callbacks.Callback):
    """Trains a compiled network in so many seconds.

    Args are those of `elastic_tf.finetune`, the model compiled; the seconds count from `started`, a
    time of `time.perf_counter`. `callbacks` of the `fit` are called behind this one. A network that
    `has_head` of these classes is judged as it is given, too.

    Attributes:
        head: the solved head; None before.
        reached: accuracy (of values, the loss) on validation data of what was first and of what is
            kept; empty without validation.
        selection: what is trained; None where the head alone is solved.
        profile: times, given or foretold.
        share: seconds of a step / seconds of a full one.
        seconds: where they went, by name.
    """

    def __init__(
        self,
        model: ElasticMixin,
        samples: Samples,
        validation: Any,
        *,
        seconds: float,
        started: float,
        epochs: int,
        learning_rate: float | None = None,
        profile: TimingProfile | None = None,
        verbose: int = 1,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
        has_head: bool = False,
    ) -> None:
        super().__init__()
        self.set_model(model)
        self._others, self._has_head = callbacks, has_head
        self.head: HeadSolution | None = None
        self.selection: Selection | None = None
        self.share = 0.0
        self.seconds = dict[str, float]()
        self._samples, self._verbose = samples, verbose
        self._validation = None if validation is None else as_samples(validation).typed(samples)
        self._epochs, self._rate = epochs, RATE if learning_rate is None else learning_rate
        self.profile: Any = profile
        self._marked, self._given = started, seconds
        self._ends = started + (1.0 - _SPARE) * seconds
        self._kept, self._weights = "", list[np.ndarray]()
        self.reached: list[float] = []
        self._most = 0.0  # the highest accuracy
        self._checks = False  # whether each epoch is validated
        self._looks = False  # whether weights between the first and the last are judged, too
        self._steps, self._pace = 0, Pace()
        self._needed = 0.0  # seconds of another step and the end

    @property
    def left(self) -> float:
        """Seconds."""
        return self._ends - time.perf_counter()

    def run(self) -> None:
        """Train, or solve the head alone where there is no time for more."""
        model, samples = self.model, self._samples
        self._mark("start")
        x = samples.take(np.arange(samples.batch_size))[0]
        forward = None
        if self.profile is None:
            forward = Forward(model, x)
            self.profile = prior_profile(model, x, forward)
        else:
            shapes = sample_shapes(tf.nest.flatten(x))
            self.profile.check(model, batch_size=samples.batch_size, input_shape=shapes)
        self._mark("foretold")
        row = 1e-6 * self.profile.t_forward / samples.batch_size
        self._judging = row * (self._validation.rows if self._validation else 0)
        # what is kept and the head, and the head again of what is trained
        passes = (1.0 + _SHARE) * row * samples.count
        views = max(min(int(_KEEPING * self.left / passes), samples.views), 1)
        self._samples = samples = samples.of_views(views)
        self._passing = row * samples.rows
        around = self._around(0.0)  # at least: the clock tells the rest
        self._epoch = 1e-6 * self.profile.t_full * samples.steps  # seconds of full training
        self._tell("Solving the head", row * samples.rows)
        if self.left - around < _LEAST_EPOCHS * self._epoch:
            self.head = solve_head(model, samples, until=self._ends)
            self._mark("head")
            self._warn(around + _LEAST_EPOCHS * self._epoch)
            return
        callbacks = [self, *self._others]
        model._elastic.forward = forward
        try:
            with stack.optimized_once():
                model.fit(samples, epochs=self._epochs, verbose=self._verbose, callbacks=callbacks)
        except _TooLate:
            rest = self._ending + first_step_seconds(model, self.share)
            self._warn(rest + _LEAST_EPOCHS * self._epoch)
        except KeyboardInterrupt:  # a second one, or in a thread
            if not self._weights:  # nothing has been solved yet
                raise
            self._mark("steps")
            which = "last weights" if self._validation is None else f"weights of {self._kept}"
            print(f"\nInterrupted; the {which} are kept.", flush=True)
            if self._validation is not None:
                model.set_weights(self._weights)
        finally:
            self._listen(False)
        if self._verbose:
            print(self.said(), flush=True)

    def said(self) -> str:
        """What was trained, what came out and where the seconds went."""
        epochs, found = self._steps / self._samples.steps, ""
        if self.reached:
            said = "{:.1%}" if self._is_accuracy else "loss {:.4g}"
            first, now = map(said.format, self.reached)
            begun = "As given" if self._has_head else "Head"
            found = f"{begun} {first}, now {now} ({self._kept}). "
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f"{found}{epochs:.1f} epochs, {sum(self.seconds.values()):.0f} s.\nSeconds: {parts}."

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Before the first one, choose what is trained, keep activations, solve the head."""
        if epoch:
            return
        epochs = self._choose()
        self._mark("chosen")
        self.model.cache_prefix(epochs)
        if self._validation is not None:
            self.model._elastic.rows.beside(self._validation)
            if self._has_head:
                self._judge(_GIVEN, self._evaluated())
        self._mark("kept")
        self.head = solve_head(self.model, self._samples)
        self._ending = self._mark("head")
        if self._kept != _GIVEN:
            self._weights = self.model.get_weights()
        if self._validation is not None:
            self._judge(_HEAD, self._evaluated())
            self._judging = self._mark("validated")
            self._ending += 2.0 * self._judging
            left = self.left - self._ending
            self._checks = self._epochs * self._judging < _VALIDATING * left
            self._looks = self._ending < _VALIDATING * left
            self._ending *= 1 + self._looks
        if self._kept == _GIVEN:
            self.model.set_weights(self._weights)
        self._start = self.model.get_weights()
        self._set_rate(0.0)
        if self.left < self._ending + first_step_seconds(self.model, self.share):
            raise _TooLate
        if self._kept != _GIVEN:
            begin(self.model, self.head)
        self._listen(True)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Let the rate fall; stop where another step would leave too little time for the end."""
        seconds = self._mark("first step" if not self._steps else "steps")
        now, self._steps = time.perf_counter(), self._steps + 1
        if self._steps == 1:
            self._began = now
            self.model.stop_training |= self.left < self._ending
            return
        self._pace.step(seconds)
        ending = self._pace.slower * (self._ending + self._judging * self._checks)
        self._needed = ending + seconds
        left = self._ends - ending - now
        passed = now - self._began
        progress = passed / (passed + max(left, 0.0))
        whole = self._steps / (self._epochs * self._samples.steps)
        self._set_rate(max(progress, whole))
        if left < seconds:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Validate where that takes little, for Keras's logs too."""
        if self._checks:
            found = self._evaluated()
            self._mark("validated")
            assert logs is not None
            logs.update({f"val_{name}": value for name, value in found.items()})
            if self.left < self._needed:  # for that validation took what the next one was to take
                self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Solve the head once more, and put the weights back that are kept."""
        self._listen(False)
        self._mark("steps")
        self._tell("Solving the head again", self._ending)
        assert self.head is not None
        one, data, head, found = self.model, self._samples, self.head, None
        ending, left = self._pace.slower * self._ending, self.left + _LATE * self._given
        is_good = ending / (1 + self._looks) < left  # what would end late is not begun
        if is_good and self._validation:
            self._judge("the last weights", self._evaluated())
        if self._looks and ending < left:
            found = solve_between(one, data, head, self._start, self._evaluated)
        elif is_good := is_good and solve_again(one, data, head):
            found = (AGAIN, self._evaluated()) if self._validation else None
        if found is not None:
            self._judge(*found)
        self._mark("head again")
        if self._validation is not None or not is_good:
            self.model.set_weights(self._weights)

    def _around(self, share: float) -> float:
        """Seconds of beginning and ending at a share of a full step, on a straight line."""
        passes = (_PASSES[0] + _PASSES[1] * share) * (self._passing + self._judging)
        traces = _TRACES * self.model._elastic.tracing
        return passes + traces + first_step_seconds(self.model, share)

    def _listen(self, is_on: bool) -> None:
        """Let Ctrl-C end the steps alone, with the head solved again; or let it end everything."""
        if threading.current_thread() is not threading.main_thread():
            return
        all_ends, steps_end = signal.default_int_handler, self._interrupted
        before, now = (all_ends, steps_end) if is_on else (steps_end, all_ends)
        if signal.getsignal(signal.SIGINT) == before:
            signal.signal(signal.SIGINT, now)

    def _interrupted(self, *_: Any) -> None:
        self._listen(False)
        self.model.stop_training = True
        print("\nEnding after this step. Ctrl-C once more ends at once.", flush=True)

    def _warn(self, missed: float) -> None:
        """Say that there was no time to train, which takes so many seconds beside those passed."""
        passed = self._given - self.left
        least = math.ceil(max(passed + missed, 1.1 * self._given))
        seen, rows = self.head.samples if self.head else 0, self._samples.rows
        part = f" on {seen} of {rows} samples" if seen < rows else ""
        warnings.warn(
            f"`seconds` must suffice to train, here {least} or more. Received: {self._given:g}. "
            f"The head alone was solved{part}, in {passed:.0f} s.",
            stacklevel=4,
        )

    def _tell(self, what: str, seconds: float) -> None:
        """Say what takes more than a second."""
        if self._verbose and seconds > 1.0:
            print(f"{what}, about {seconds:.0f} s ...", flush=True)

    def _choose(self) -> int:
        """Set the plan; the passes over the samples that there is time for, at most."""
        profile, model = self.profile, self.model
        assert model._elastic.rows is not None
        least, most = self._around(0.0), self._around(1.0)
        left, more = max(self.left - least, 0.0), most - least
        few = min(_FEW, self._epochs)
        of_few, of_all = (left / (n * self._epoch + more) for n in (few, self._epochs))
        share = max(min(of_few, max(_SHARE, of_all), 1.0), _LEAST_EPOCHS / few)
        training = max(left - more * share, 0.0)
        passes = min(training / (share * self._epoch), self._epochs)
        epochs = max(math.ceil(passes), self._samples.views + 1)  # heads take them, too
        if model._elastic.rows.keeps(epochs):
            profile = profile.with_cached_prefix()
        share = max(share, smallest_feasible_rho(profile))
        self.selection = select_tensors(depth(model), profile, share, strategy="order")
        self.share = self.selection.time / profile.t_full
        model.set_plan(self.selection.plan)
        if self._verbose:
            about = min(training, passes * self.share * self._epoch)
            mask = self.selection.mask
            print(
                f"Training {mask.sum()} of {len(mask)} tensors, {self.share:.2f} of a full step, "
                f"for about {about:.0f} s. {self._epochs} epochs of all would take about "
                f"{self._epochs * self._epoch:.0f} s.",
                flush=True,
            )
        return epochs

    def _set_rate(self, progress: float) -> None:
        """Rising from near zero first, then falling on a cosine."""
        if progress < WARM_UP:
            factor = max(progress, 1e-3) / WARM_UP
        else:
            factor = 0.5 * (1.0 + math.cos(math.pi * (progress - WARM_UP) / (1.0 - WARM_UP)))
        self.model.optimizer.learning_rate = self._rate * factor

    def _evaluated(self) -> dict[str, float]:
        """Loss and metrics on validation data, as `evaluate` gives them, from what is kept."""
        model, layer = self.model, self.head.layer if self.head else None
        assert self._validation is not None
        y_pred = tf.constant(predicted(model, layer, self._validation))
        x, y, weight = (*self._validation.arrays, None)[:3]
        model.reset_metrics()
        logs = judged(model, x, y, weight, y_pred)
        return {name: float(value) for name, value in logs.items()}

    def _judge(self, name: str, found: dict[str, float]) -> None:
        """Keep these weights where they are as good as the best so far.

        Where there is no accuracy: unless their loss is above the first one's.
        """
        accuracy, loss = found.get("accuracy"), found["loss"]
        now = loss if accuracy is None else accuracy
        self._is_accuracy, is_good = accuracy is not None, math.isfinite(loss)
        if self.reached and accuracy is None:
            is_good &= now <= self.reached[0]
        elif self.reached:
            assert self._validation is not None
            outputs = np.shape(self._validation.arrays[1])[1:]
            each = math.prod(outputs) if of_loss(self.model.loss) == "sigmoid" else 1
            is_good &= is_as_good(now, self._most, each * self._validation.rows)
        if math.isfinite(loss):
            self._most = max(self._most, now)
        if is_good:
            self._kept, self._weights = name, self.model.get_weights()
            self.reached = [*self.reached[:1], now] if self.reached else [now, now]

    def _mark(self, name: str) -> float:
        """Count what passed since the last mark; its seconds."""
        now = time.perf_counter()
        passed, self._marked = now - self._marked, now
        self.seconds[name] = self.seconds.get(name, 0.0) + passed
        return passed


def as_samples(data: Any, batch_size: int = 1) -> Samples:
    """Training or validation data in memory, whose activations can be kept."""
    if hasattr(data, "samples"):  # a folder of images
        data = data.samples()
    if isinstance(data, Samples):
        return data
    if isinstance(data, tf.data.Dataset):
        data = read(data if is_batched(data.element_spec) else data.batch(READ))
    elif not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise ValueError(
            "Samples must be given as (x, y), a tf.data.Dataset or et.Samples. Received: "
            f"{arguments.brief(data)}."
        )
    x, y, weight = (*data, None)[:3]
    return Samples(x, y, sample_weight=weight, batch_size=batch_size)
