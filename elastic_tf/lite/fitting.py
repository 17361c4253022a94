"""One training: the solved head, the choice of a plan, steps, states, and the clock."""

from __future__ import annotations

import math
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from .disk import Rows
    from .ridge import Ridge, crossentropy, is_as_good
else:  # in the exported folder
    from disk import Rows
    from ridge import Ridge, crossentropy, is_as_good

_WARM_UP = 0.15  # share of the steps in which the rate rises, as in `elastic_tf.finetune`
_LOOKS = 5  # steps whose median is the time of a plan, after one that makes ready
_SPARE = 0.95  # of the seconds left: what the steps may take
_EVERY = 60.0  # seconds between two states


class Fit:
    """`Trainer.fit` on data that are checked; settings are its arguments that decide the result."""

    def __init__(
        self,
        trainer: Any,
        data: Any,
        held: Any,
        path: Path,
        began: float,
        show: bool,
        settings: dict[str, Any],
    ) -> None:
        _check(settings, len(trainer.plans), data[1])
        self._trainer, self._held, self._settings, self._path = trainer, held, settings, path
        (self._x, self._y), self._began, self._show = data, began, show
        self._best = path.with_name(f"{path.name}.best")
        self._batches = math.ceil(len(self._y) / trainer.batch_size)
        self._kept: tuple[str | None, Any] = None, None  # a function, and what it says
        self._end = 0.0  # seconds after an epoch
        some = self._x[np.arange(0, len(self._y), max(len(self._y) // 64, 1))]
        said = f"{settings} {self._x.shape} {self._x.dtype} {held is None}".encode()
        self._run: dict[str, Any] = {
            "key": zlib.crc32(some.tobytes() + self._y.tobytes() + said),
            **{"done": False, "step": 0, "steps": settings["epochs"] * self._batches},
            **{"kept": 0, "plan": None, "start": 1.0, "spent": 0.0, "total": 0.0, "count": 0},
            "history": [],
        }

    def run(self) -> list[dict[str, Any]]:
        """Train, or go on."""
        if not self._resume():
            self._trainer.slots, self._trainer.steps = {}, {}
            self._end_epoch(self._solve_head())
        if not self._run["done"]:
            if self._run["plan"] is None:
                self._choose()
                if self._run["steps"]:
                    self._begin()
            self._train()
            self._finish()
        return list(self._run["history"])

    def _resume(self) -> bool:
        """Whether there is a state of this training, which is taken."""
        if not self._path.exists():
            return False
        names = self._trainer.class_names
        found = self._trainer.load(self._path)
        if found["key"] == self._run["key"]:
            self._run |= found  # of an earlier version it may lack something
            self._say(f"'{self._path}' has made {found['step']} of {found['steps']} steps.")
        elif not found["done"]:
            raise ValueError(
                "A training that was interrupted goes on with the same arguments and images. "
                f"Received: others than those of '{self._path}', which has made {found['step']} "
                "steps. Use the same, or remove it to begin anew."
            )
        else:  # its weights are a beginning, for other classes maybe
            self._trainer.class_names = names or self._trainer.class_names
        return found["key"] == self._run["key"]

    def _solve_head(self) -> float:
        """Solve the head, and return its loss on images left out."""
        trainer, head = self._trainer, self._trainer.model["head"]
        features = self._filled(head["features"])
        wanted, weight = np.eye(trainer.model["classes"])[self._y], np.ones(len(self._y))
        intercept = head["bias"] is not None
        ridge = Ridge(features, wanted, weight, intercept=intercept, empty=self._scratch)
        found = ridge.head(crossentropy)
        for name, value in (("kernel", found.kernel), ("bias", found.bias)):
            if head[name] is not None:
                trainer.weights[head[name]] = value.astype(np.float32)
        trainer.close()
        self._run["start"] = found.start
        accuracy = (found.left_out.argmax(axis=1) == self._y).mean()
        self._say(f"The head is solved: accuracy {accuracy:.1%} on images left out.")
        return float(crossentropy(found.left_out, wanted).mean())

    def _begin(self) -> None:
        """Make the solved head as unsure of these images as of others: it learns more of them."""
        trainer, head = self._trainer, self._trainer.model["head"]
        for name in ("kernel", "bias"):
            if head[name] is not None:
                value = trainer.weights[head[name]]
                trainer.weights[head[name]] = np.float32(self._run["start"]) * value
        trainer.close()

    def _filled(self, name: str | None) -> Any:
        """What a function says of every image, on the disk; no function: the images."""
        if name and self._kept[0] != name:
            rows: Any = None
            for part in self._trainer.features(name, self._x):
                rows = rows or Rows(self._trainer.folder, part.shape[1:], np.float32)
                rows.append(part)
            self._kept = name, rows
        return self._kept[1] if name else self._x

    def _scratch(self, shape: tuple[int, int]) -> np.ndarray:
        with tempfile.TemporaryFile(dir=self._trainer.folder) as file:  # the array holds it open
            return np.memmap(file, np.float64, "w+", shape=shape)

    def _choose(self) -> None:
        """Time each plan by steps that are thrown away; the largest one that fits is trained."""
        run, trainer, only = self._run, self._trainer, self._settings["plan"]
        ladder = range(len(trainer.plans)) if only is None else [only]
        run["plan"] = ladder[-1]
        if self._settings["seconds"] is None:
            return
        given, planned = trainer.batch(self._x, self._y, slice(0, trainer.batch_size)), run["steps"]
        for k in ladder:
            held = {i: trainer.weights[i].copy() for i in trainer.plans[k]["tensors"]}
            name, feature, x = trainer.plans[k]["features"], 0.0, given["x"]
            try:
                if name:
                    feature, found = _timed(trainer.call, name, x=x)
                    x = found["features"]
                step, _ = _timed(trainer.step, k, {**given, "x": x}, 0.0, cached=True)
            except (RuntimeError, MemoryError):
                if k == ladder[0]:
                    raise
                self._say(f"Plan {k} does not fit into the memory.")
                break
            finally:
                trainer.weights.update(held)
                trainer.slots, trainer.steps = {}, {}
            fill = 0.0 if name == self._kept[0] else feature * self._batches
            left = _SPARE * (self._left() - fill) - (self._settings["epochs"] + 1) * self._end
            if k != ladder[0] and planned * step > left:
                break
            run["plan"], run["steps"] = k, min(planned, max(int(left / step), 0))
        self._say(f"There is time for {run['steps']} steps of plan {run['plan']}.")

    def _left(self) -> float:
        return float((self._settings["seconds"] or math.inf) - self._spent())

    def _spent(self) -> float:
        return float(self._run["spent"] + time.monotonic() - self._began)

    def _train(self) -> None:
        run, size, batches = self._run, self._trainer.batch_size, self._batches
        rate = self._settings["rate"] or self._trainer.model["optimizer"]["learning_rate"]
        saved = shown = time.monotonic()
        planned, order, source = self._settings["epochs"] * batches, None, self._source()
        looked, done = time.monotonic(), 0
        while run["step"] < run["steps"]:
            epoch, at = divmod(run["step"], batches)
            if order is None or at == 0:
                generator = np.random.default_rng([0, epoch])
                order = generator.permutation(len(self._y))
            rows = order[at * size : (at + 1) * size]
            loss = self._step(source, rows, rate_at(rate, run["step"], run["steps"]))
            run["total"] += loss * len(rows)
            run["step"], run["count"], done = run["step"] + 1, run["count"] + len(rows), done + 1
            now, is_end = time.monotonic(), run["step"] % batches == 0
            pace = (now - looked) / done
            if now - shown > 0.5 or is_end:
                self._say(self._progress(), end="\n" if is_end else "\r")
                shown = now
            if is_end or now - saved > _EVERY:
                self._end_epoch() if is_end else self._save()
                saved = time.monotonic()
                looked += saved - now
            if is_end and self._settings["seconds"] is not None:  # the clock has the last word
                fits = int((_SPARE * self._left() - self._end) / pace)
                run["steps"] = min(planned, run["step"] + max(fits, 0))
                looked, done = time.monotonic(), 0
            if self._left() < 1.5 * pace + 2.0 * self._end:
                run["steps"] = run["step"]
        if run["count"]:
            self._end_epoch()

    def _source(self) -> Any:
        """Features of all images for the present plan; None where steps begin with images."""
        name = self._trainer.plans[self._run["plan"]]["features"]
        if not name or self._run["steps"] < self._batches:
            return None  # with fewer steps each is computed at most once
        try:
            return self._filled(name)
        except OSError as error:
            self._say(f"{error.strerror}: what comes before plan {self._run['plan']} is not kept.")
            return None

    def _step(self, source: Any, rows: np.ndarray, rate: float) -> float:
        k, cached = self._run["plan"], source is not None
        given = self._trainer.batch(source if cached else self._x, self._y, rows)
        loss = self._trainer.step(k, given, rate, cached=cached)
        if not math.isfinite(loss):
            self._trainer.load(self._path)
            raise FloatingPointError(
                f"The loss must be finite. Received: {loss} in step {self._run['step'] + 1}. The "
                f"weights are again those of '{self._path}'. Remove it and take a lower rate."
            )
        return loss

    def _end_epoch(self, loss: float | None = None) -> None:
        """Note the epoch, judge the weights, keep them; `loss` is that before the first one."""
        run, history, began = self._run, self._run["history"], time.monotonic()
        record = {"epoch": run["step"] / self._batches, "plan": run["plan"], "seconds": 0.0}
        record["loss"] = run["total"] / run["count"] if run["count"] else loss
        if self._held is not None:
            found = self._trainer.evaluate(*self._held)
            record.update(accuracy=found["accuracy"], validation_loss=found["loss"])
        history.append(record)
        run["total"], run["count"] = 0.0, 0
        if self._is_kept(record):
            run["kept"] = len(history) - 1
            self._trainer.save(self._best, run)
        record["seconds"] = round(self._spent(), 3)
        self._save()
        self._end = time.monotonic() - began

    def _is_kept(self, record: dict[str, Any]) -> bool:
        """Whether the last epoch is as good as the best so far; without `validation`, the best."""
        history = self._run["history"]
        if self._held is None:
            losses = [math.inf if one["loss"] is None else one["loss"] for one in history]
            return losses.index(min(losses)) == len(losses) - 1
        best = max(one["accuracy"] for one in history)
        return is_as_good(record["accuracy"], best, len(self._held[1]))

    def _save(self) -> None:
        self._trainer.save(self._path, {**self._run, "spent": self._spent()})

    def _finish(self) -> None:
        """Take the weights that are kept; the training has ended."""
        history = self._run["history"]
        kept = history[self._run["kept"]]
        if kept is not history[-1] and not self._best.exists():
            self._say(f"'{self._best}' is gone: kept the last weights, not the best ones.")
        elif kept is not history[-1]:
            self._trainer.load(self._best)
            self._say(f"Kept the weights of epoch {kept['epoch']:g}. Take a lower rate?")
        self._run["done"] = True
        self._save()
        self._best.unlink(missing_ok=True)

    def _progress(self) -> str:
        run = self._run
        said = f"step {run['step']} of {run['steps']}, plan {run['plan']}, "
        said += f"loss {run['total'] / run['count']:.4f}, {self._spent():.0f} s"
        accuracy = run["history"][-1].get("accuracy")
        return said + (f", accuracy {accuracy:.1%}" if accuracy else "")

    def _say(self, text: str, end: str = "\n") -> None:
        if self._show:
            print(f"{text:78}", end=end, flush=True)


def rate_at(base: float, step: int, steps: int) -> float:
    """The learning rate of a step: it rises in a line, then falls on a cosine to zero.

    As `elastic_tf.train.optimizers.cosine` with the warm-up of `elastic_tf.finetune`.
    """
    rising = round(_WARM_UP * steps)
    if step < rising:
        return base / rising + (base - base / rising) * step / rising
    return base * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(steps - rising, 1)))


def _timed(function: Any, *given: Any, **named: Any) -> tuple[float, Any]:
    """Median seconds of a function that is warm, and what it returned."""
    found, seconds = function(*given, **named), []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        found = function(*given, **named)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), found


def _check(settings: dict[str, Any], plans: int, y: np.ndarray) -> None:
    """Refuse settings of a training that cannot be."""
    for name, low, high in (("epochs", 1, 10**6), ("plan", 0, plans - 1)):
        value = settings[name]
        fits = type(value) is int and low <= value <= high
        if not fits and (name, value) != ("plan", None):
            raise ValueError(
                f"`{name}` must be an integer from {low} to {high}. Received: {name}={value!r}."
            )
    for name in ("seconds", "rate"):
        if settings[name] is not None and not 0.0 < settings[name] < 1e9:
            raise ValueError(
                f"`{name}` must be above 0, or None. Received: {name}={settings[name]!r}."
            )
    if y.min() == y.max():
        raise ValueError(
            f"The images must be of two classes at least. Received: {len(y)} of class {y[0]}."
        )
