"""One training: the solved head, the choice of a plan, steps, states, and the clock."""

from __future__ import annotations

import math
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from .disk import Rows
    from .ridge import Ridge, best_scale, crossentropy
else:  # in the exported folder
    from disk import Rows
    from ridge import Ridge, best_scale, crossentropy

_WARM_UP = 0.15  # share of the steps in which the rate rises, as in `elastic_tf.finetune`
_LOOKS = 5  # steps whose median is the time of a plan, after one that makes ready
_SPARE = 0.95  # of the seconds left: what a new plan may take


class Fit:
    """`Trainer.fit`, with its arguments checked but for `settings`."""

    def __init__(
        self,
        trainer: Any,
        data: tuple[Any, np.ndarray],
        held: tuple[Any, np.ndarray] | None,
        settings: dict[str, Any],
        path: Path,
        every: float,
        verbose: bool,
        began: float,
    ) -> None:
        _check(settings, len(trainer.plans), data[1])
        self._trainer, self._held, self._settings, self._path = trainer, held, settings, path
        (self._x, self._y), self._every, self._verbose, self._began = data, every, verbose, began
        self._best = path.with_name(f"{path.name}.best")
        self._batches = math.ceil(len(self._y) / trainer.batch_size)
        self._kept: tuple[str | None, Any] = None, None  # a function, and what it says
        self._slower, self._ends = 1.0, [0.0, 0.0]  # seconds to judge, and to save
        some = self._x[np.arange(0, len(self._y), max(len(self._y) // 64, 1))]
        said = f"{settings} {self._x.shape} {self._x.dtype} {held is None}".encode()
        self._run: dict[str, Any] = {
            "key": zlib.crc32(some.tobytes() + self._y.tobytes() + said),
            **{"done": False, "step": 0, "steps": settings["epochs"] * self._batches},
            **{"plan": None, "times": {}, "spent": 0.0, "total": 0.0, "count": 0, "history": []},
        }

    def run(self) -> list[dict[str, Any]]:
        """Train, or go on."""
        if not self._resume():
            self._end_epoch(self._head())
            self._time_plans()
        if not self._run["done"]:
            self._train()
            self._finish()
        return list(self._run["history"])

    def _resume(self) -> bool:
        try:
            found = self._trainer.load(self._path)
        except FileNotFoundError:
            return False
        if found["key"] != self._run["key"]:
            if found["done"]:
                return False
            raise ValueError(
                "A training that was interrupted goes on with the same arguments and images. "
                f"Received: others than those of '{self._path}', which has made {found['step']} "
                "steps. Use the same, or remove it to begin anew."
            )
        self._run = found
        ended = "It has ended." if found["done"] else "Going on."
        self._say(f"'{self._path}' is at step {found['step']} of {found['steps']}. {ended}")
        if found["plan"] is None:
            self._time_plans()
        return True

    def _head(self) -> float | None:
        """Solve the head, and return its loss on images left out; no slot has been trained."""
        trainer, head, loss = self._trainer, self._trainer.model["head"], None
        if self._settings["solve"]:
            features = self._filled(head["features"])
            wanted, weight = np.eye(trainer.model["classes"])[self._y], np.ones(len(self._y))
            ridge = Ridge(features, wanted, weight, empty=self._scratch)
            penalty = ridge.best_penalty()
            left_out = ridge.left_out(penalty)
            scale = best_scale(left_out, wanted, weight, crossentropy)
            for name, value in zip(("kernel", "bias"), ridge.weights(penalty)):
                if head[name] is not None:
                    trainer.weights[head[name]] = (scale * value).astype(np.float32)
            trainer.close()
            accuracy = (left_out.argmax(axis=1) == self._y).mean()
            self._say(f"The head is solved: accuracy {accuracy:.1%} on images left out.")
            loss = float(crossentropy(scale * left_out, wanted).mean())
        trainer.slots, trainer.steps = {}, {}
        return loss

    def _filled(self, name: str | None) -> Any:
        """What a function says of every image, on the disk; no function: the images."""
        if self._kept[0] != name:
            rows: Any = None
            for part in self._trainer.features(name, self._x):
                rows = rows or Rows(self._trainer.folder, part.shape[1:], np.float32)
                rows.append(part)
            self._kept = name, rows
        return self._kept[1] if name else self._x

    def _scratch(self, shape: tuple[int, int]) -> np.ndarray:
        with tempfile.TemporaryFile(dir=self._trainer.folder) as file:  # the array holds it open
            return np.memmap(file, np.float64, "w+", shape=shape)

    def _time_plans(self) -> None:
        """Time each plan by steps that are thrown away, up to the first that does not fit."""
        run, trainer, only = self._run, self._trainer, self._settings["plan"]
        ladder = range(len(trainer.plans)) if only is None else [only]
        run["plan"] = ladder[-1]
        if self._settings["seconds"] is None:
            return
        given = trainer.batch(self._x, self._y, slice(0, trainer.batch_size))
        for k in ladder:
            name, feature, x = trainer.plans[k]["features"], 0.0, given["x"]
            held = {i: trainer.weights[i].copy() for i in trainer.plans[k]["tensors"]}
            try:
                if name is not None:
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
            run["plan"], run["times"][str(k)] = k, [step, feature]
            if self._cost(k) > self._left():
                break
        self._plan()

    def _plan(self) -> None:
        """Keep the plan while the seconds left allow it; else a cheaper one, else fewer steps."""
        run, left, before = self._run, self._left(), (self._run["plan"], self._run["steps"])
        run["steps"] = self._settings["epochs"] * self._batches
        if self._cost(run["plan"]) > left:
            known = [int(k) for k in run["times"] if int(k) <= run["plan"]]
            fits = [k for k in known if self._cost(k) <= _SPARE * left]
            run["plan"] = max(fits, default=known[0])
            if not fits:
                pace = self._cost(known[0]) / max(run["steps"] - run["step"], 1)
                run["steps"] = run["step"] + max(int(_SPARE * left / pace), 0)
        if (run["plan"], run["steps"]) != before:
            self._say(f"There is time for {run['steps']} steps of plan {run['plan']}.")

    def _cost(self, k: int) -> float:
        """Seconds of all that is left to do, with this plan."""
        (step, feature), steps = self._run["times"][str(k)], self._run["steps"] - self._run["step"]
        is_kept = self._settings["cache"] and self._trainer.plans[k]["features"] == self._kept[0]
        each = 0 if is_kept else min(self._batches, steps) if self._settings["cache"] else steps
        ends = math.ceil(steps / self._batches) * sum(self._ends)
        return self._slower * (steps * step + each * feature) + ends + self._ends[1]

    def _left(self) -> float:
        return float(self._settings["seconds"] - self._spent())

    def _spent(self) -> float:
        return float(self._run["spent"] + time.monotonic() - self._began)

    def _train(self) -> None:
        run, size, seconds = self._run, self._trainer.batch_size, self._settings["seconds"]
        rate = self._settings["rate"] or self._trainer.model["optimizer"]["learning_rate"]
        looked = saved = shown = time.monotonic()
        plan, done, order = None, 0, np.arange(0)
        while run["step"] < run["steps"]:
            if run["plan"] != plan:
                plan, source = run["plan"], self._source()
                looked, done = time.monotonic(), 0
            epoch, at = divmod(run["step"], self._batches)
            if not len(order) or at == 0:
                generator = np.random.default_rng([self._settings["seed"], epoch])
                order = generator.permutation(len(self._y))
            rows = order[at * size : (at + 1) * size]
            loss = self._step(source, rows, rate_at(rate, run["step"], run["steps"]))
            run["step"], run["count"], done = run["step"] + 1, run["count"] + len(rows), done + 1
            run["total"] += loss * len(rows)
            now = time.monotonic()
            is_end = run["step"] % self._batches == 0
            pace = (now - looked) / done
            if is_end or now - saved > self._every:
                self._end_epoch() if is_end else self._save()
                saved = time.monotonic()
                looked += saved - now
            if seconds is not None:
                if is_end or done >= max(run["steps"] // 16, 16):
                    step, feature = run["times"][str(plan)]
                    self._slower = pace / (step if source is not None else step + feature)
                    self._plan()
                    looked, done = time.monotonic(), 0
                if self._left() < 1.5 * pace + sum(self._ends) + self._ends[1]:
                    run["steps"] = run["step"]
            if now - shown > 0.5 or is_end:
                self._say(self._progress(), end="\n" if is_end else "\r")
                shown = now
        if run["count"]:
            self._end_epoch()

    def _source(self) -> Any:
        """Features of all images for the present plan; None where steps begin with images."""
        name = self._trainer.plans[self._run["plan"]]["features"]
        if not name or not self._settings["cache"] or self._run["steps"] < self._batches:
            return None  # with fewer steps each is computed at most once
        return self._filled(name)

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
        """Note the epoch, judge the weights, keep them.

        Args:
            loss: of what is there before the first step.
        """
        run, count, history = self._run, self._run["count"], self._run["history"]
        record = {"epoch": run["step"] / self._batches, "plan": run["plan"], "seconds": 0.0}
        record["loss"] = run["total"] / count if count else loss
        is_best = not count and loss is not None
        if self._held is not None:
            began = time.monotonic()
            found = self._trainer.evaluate(*self._held)
            self._ends[0] = time.monotonic() - began
            record.update(accuracy=found["accuracy"], validation_loss=found["loss"])
            is_best = all(_rank(record) > _rank(other) for other in history)
        history.append(record)
        run["total"], run["count"] = 0.0, 0
        if is_best:
            self._trainer.save(self._best, run)
        record["seconds"] = round(self._spent(), 3)
        self._save()

    def _save(self) -> None:
        began = time.monotonic()
        self._trainer.save(self._path, {**self._run, "spent": self._spent()})
        self._ends[1] = time.monotonic() - began

    def _finish(self) -> None:
        """Take the best weights; the training has ended."""
        first, last = self._run["history"][0], self._run["history"][-1]
        if self._held is not None:
            best = max(self._run["history"], key=_rank)
            if best is not last:
                self._trainer.load(self._best)
            self._say(f"Kept the best weights: accuracy {best['accuracy']:.1%}.")
        elif self._best.exists() and last["loss"] > first["loss"]:
            # images that were trained on before are easier than those left out: it is worse
            self._trainer.load(self._best)
            self._say(
                f"Kept the solved head alone: its loss is {first['loss']:.4f} on images left out, "
                f"that of the last epoch {last['loss']:.4f}. Take a lower rate, or more epochs."
            )
        self._run["done"] = True
        self._save()
        self._best.unlink(missing_ok=True)

    def _progress(self) -> str:
        run, last, seconds = self._run, self._run["history"][-1], self._settings["seconds"]
        loss = run["total"] / run["count"] if run["count"] else last["loss"]
        accuracy = f", accuracy {last['accuracy']:.1%}" if "accuracy" in last else ""
        return (
            f"epoch {math.ceil(run['step'] / self._batches)}, "
            f"step {run['step']} of {run['steps']}, plan {run['plan']}, "
            f"loss {loss:.4f}{accuracy}, {self._spent():.0f} s"
            + (f" of {seconds:g}" if seconds else "")
        )

    def _say(self, text: str, end: str = "\n") -> None:
        if self._verbose:
            print(f"{text:78}", end=end, flush=True)


def rate_at(base: float, step: int, steps: int) -> float:
    """The learning rate of a step: it rises in a line, then falls on a cosine to zero.

    As `elastic_tf.optimizers.cosine` with the warm-up of `elastic_tf.finetune`.
    """
    rising = round(_WARM_UP * steps)
    if step < rising:
        return base / rising + (base - base / rising) * step / rising
    return base * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(steps - rising, 1)))


def _rank(record: dict[str, Any]) -> tuple[float, float]:
    return record["accuracy"], -record["validation_loss"]


def _timed(function: Callable[..., Any], *given: Any, **named: Any) -> tuple[float, Any]:
    """Median seconds of a function that is warm, and what it returned."""
    found, seconds = function(*given, **named), []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        found = function(*given, **named)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), found


def _check(settings: dict[str, Any], plans: int, y: np.ndarray) -> None:
    """Refuse settings of a training that cannot be."""
    whole = {"epochs": (1, 10**6), "seed": (0, 2**63), "plan": (0, plans - 1)}
    for name, value in settings.items():
        low, high = whole.get(name, (0, 0))
        if name in whole and (name, value) != ("plan", None):
            if type(value) is not int or not low <= value <= high:
                raise ValueError(
                    f"`{name}` must be an integer from {low} to {high}. Received: {name}={value!r}."
                )
        if name in ("seconds", "rate") and value is not None and not 0.0 < value < 1e9:
            raise ValueError(f"`{name}` must be above 0, or None. Received: {name}={value!r}.")
    if y.min() == y.max():
        raise ValueError(
            f"The images must be of two classes at least. Received: {len(y)} of class {y[0]}."
        )
