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
_SPARE, _LATE = 0.95, 1.05  # times the seconds left: what is planned with; what ends a plan
_EVERY = 16, 0.02  # steps, and share of the seconds, between two forecasts at least


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
        (self._x, self._y), self._plans = data, trainer.plans
        self._every, self._verbose, self._began = every, verbose, began
        self._best = path.with_name(f"{path.name}.best")
        self._batches = math.ceil(len(self._y) / trainer.batch_size)
        self._kept: dict[str, Rows] = {}  # by the function that computed them
        self._judging = self._saving = 0.0  # seconds
        self._pace = [0.0, 0]  # seconds of steps since the last forecast, and how many
        self._run: dict[str, Any] = {
            **{"key": self._key(), "done": False, "step": 0, "plan": settings["plan"]},
            **{"steps": settings["epochs"] * self._batches, "spent": 0.0, "times": {}},
            **{"sums": [0.0, 0.0], "history": [], "best": None},
        }

    def run(self) -> list[dict[str, Any]]:
        """Train, or go on."""
        if not self._resume():
            self._end_epoch(self._head())
            self._choose()
        if not self._run["done"]:
            self._train()
            self._finish()
        else:
            self._say(f"The training in '{self._path}' has ended.")
        return list(self._run["history"])

    def _key(self) -> str:
        """Tells this training from another one."""
        some = np.arange(0, len(self._y), max(len(self._y) // 64, 1))
        said = f"{self._settings} {self._x.shape} {self._x.dtype} {self._held is None}".encode()
        return f"{zlib.crc32(self._x[some].tobytes() + self._y.tobytes() + said):08x}"

    def _resume(self) -> bool:
        try:
            found = self._trainer.read(self._path)
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
        if not found["done"]:
            self._say(f"Going on after step {found['step']} of {found['steps']}.")
        return True

    def _head(self) -> float | None:
        """Solve the head, and return its loss on images left out; no slot has been trained."""
        trainer, head, loss = self._trainer, self._trainer.model["head"], None
        if self._settings["solve"]:
            features = self._filled(head["features"])
            wanted, weight = np.eye(trainer.model["classes"])[self._y], np.ones(len(self._y))
            ridge = Ridge(features, wanted, weight, empty=self._scratch)
            penalty = ridge.best_penalty()
            kernel, bias = ridge.weights(penalty)
            left_out = ridge.left_out(penalty)
            scale = best_scale(left_out, wanted, weight, crossentropy)
            for name, value in (("kernel", kernel), ("bias", bias)):
                if head[name] is not None:
                    trainer.weights[head[name]] = (scale * value).astype(np.float32)
            trainer._open.clear()
            if head["features"]:
                self._kept[head["features"]] = features
            accuracy = (left_out.argmax(axis=1) == self._y).mean()
            self._say(f"The head is solved: accuracy {accuracy:.1%} on images left out.")
            loss = float(crossentropy(scale * left_out, wanted).mean())
        trainer.slots, trainer.steps = {}, {}
        return loss

    def _filled(self, name: str | None) -> Rows:
        """What a function says of every image, on the disk."""
        rows: Rows | None = None
        for part in self._trainer.features(name, self._x):
            rows = rows or Rows(self._trainer.folder, part.shape[1:], np.float32)
            rows.append(part)
        assert rows is not None  # there are images
        return rows

    def _scratch(self, shape: tuple[int, int]) -> np.ndarray:
        with tempfile.TemporaryFile(dir=self._trainer.folder) as file:  # the array holds it open
            return np.memmap(file, np.float64, "w+", shape=shape)

    def _choose(self) -> None:
        """Take the largest plan that fits into the seconds, by steps that are thrown away."""
        run, only = self._run, self._settings["plan"]
        run["plan"] = len(self._plans) - 1 if only is None else only
        if self._settings["seconds"] is None:
            return
        fits: list[int] = []
        given = self._trainer.batch(self._x, self._y, slice(0, self._trainer.batch_size))
        for k in range(len(self._plans)) if only is None else [only]:
            try:
                run["times"][str(k)] = self._times(k, given)
            except (RuntimeError, MemoryError):
                if only is not None or k == 0:
                    raise
                self._say(f"Plan {k} does not fit into the memory.")
                break
            if self._cost(k) > _SPARE * self._left():
                break
            fits.append(k)
        run["plan"] = fits[-1] if fits else (only or 0)
        if not fits:
            self._shorten(self._cost(run["plan"]) / max(run["steps"], 1))

    def _times(self, k: int, given: dict[str, np.ndarray]) -> list[float]:
        """Seconds of a step, and of a batch of features; what the steps change is put back."""
        trainer, name, feature = self._trainer, self._plans[k]["features"], 0.0
        if name is not None:
            feature, found = _timed(lambda: trainer.call(name, x=given["x"]))
            given = {**given, "x": found["features"]}
        changed = self._plans[k]["tensors"]
        before = {index: trainer.weights[index].copy() for index in changed}
        try:
            return [_timed(lambda: trainer.step(k, given, 0.0, cached=True))[0], feature]
        finally:
            trainer.weights.update(before)
            trainer.slots, trainer.steps = {}, {}

    def _cost(self, k: int, slower: float = 1.0) -> float:
        """Seconds of all that is left to do, with this plan."""
        (step, feature), steps = self._run["times"][str(k)], self._steps_left()
        features = 0 if self._plans[k]["features"] in self._kept else min(self._batches, steps)
        same = self._plans[k]["feature_shape"] == self._trainer.model["input_shape"]
        if same or not self._settings["cache"]:
            features = steps
        ends = math.ceil(steps / self._batches) * (self._judging + self._saving)
        return slower * (steps * step + features * feature) + ends + self._saving

    def _left(self) -> float:
        return float(self._settings["seconds"] - self._spent())

    def _spent(self) -> float:
        return float(self._run["spent"] + time.monotonic() - self._began)

    def _steps_left(self) -> int:
        return int(self._run["steps"] - self._run["step"])

    def _shorten(self, pace: float) -> None:
        """As many steps as there is time for; the rate falls to zero with them."""
        run, time_left = self._run, self._left() - self._judging - 2 * self._saving
        ends = (self._judging + self._saving) / self._batches
        steps = max(int(time_left / (pace + ends)), 0)
        if steps < self._steps_left():
            run["steps"] = run["step"] + steps
            self._say(f"There is time for {run['steps']} steps.")

    def _train(self) -> None:
        run, size, base = self._run, self._trainer.batch_size, self._settings["rate"]
        base = self._trainer.model["optimizer"]["learning_rate"] if base is None else base
        source, order, shown = self._source(), None, 0.0
        saved = time.monotonic()
        while self._steps_left() > 0:
            began, plan = time.monotonic(), run["plan"]
            if self._settings["seconds"] is not None and not self._is_in_time():
                break
            source = source if run["plan"] == plan else self._source()
            epoch, at = divmod(run["step"], self._batches)
            if order is None or at == 0:
                generator = np.random.default_rng([self._settings["seed"], epoch])
                order = generator.permutation(len(self._y))
            rows = order[at * size : (at + 1) * size]
            loss = self._step(source, rows, rate_at(base, run["step"], run["steps"]))
            run["step"] += 1
            run["sums"] = [run["sums"][0] + loss * len(rows), run["sums"][1] + len(rows)]
            now = time.monotonic()
            self._pace = [self._pace[0] + now - began, self._pace[1] + 1]
            if run["step"] % self._batches == 0:
                self._end_epoch()
                saved = time.monotonic()
            elif now - saved > self._every:
                self._save()
                saved = time.monotonic()
            if now - shown > 0.5:
                self._say(self._progress(), end="\r")
                shown = now
        if run["sums"][1]:
            self._end_epoch()

    def _source(self) -> Rows | None:
        """Features of all images for the present plan; None where steps begin with images."""
        now = self._run["plan"]
        for plan in self._plans:
            if now in plan["changes"]:
                self._kept.pop(plan["features"], None)
        self._pace = [0.0, 0]
        name, model = self._plans[now]["features"], self._trainer.model
        # images made ready for the network are as large as they were, and made again at once
        is_worth = self._plans[now]["feature_shape"] != model["input_shape"]
        if name and self._settings["cache"] and is_worth and name not in self._kept:
            if self._run["steps"] >= self._batches:  # else each is computed at most once
                self._kept[name] = self._filled(name)
        return self._kept.get(name)

    def _step(self, source: Rows | None, rows: np.ndarray, rate: float) -> float:
        k, cached = self._run["plan"], source is not None
        given = self._trainer.batch(source if cached else self._x, self._y, rows)
        loss = self._trainer.step(k, given, rate, cached=cached)
        if not math.isfinite(loss):
            self._trainer.read(self._path)
            raise FloatingPointError(
                f"The loss must be finite. Received: {loss} in step {self._run['step'] + 1}. The "
                f"weights are again those of '{self._path}'. Remove it and take a lower rate."
            )
        return loss

    def _is_in_time(self) -> bool:
        """Whether there is time for a step; where the forecast is late, what is left is less."""
        run, left = self._run, self._left()
        step, feature = run["times"][str(run["plan"])]
        is_kept = self._plans[run["plan"]]["features"] in self._kept
        planned = step + (0.0 if is_kept else feature)
        (passed, steps), (least, share) = self._pace, _EVERY
        pace = passed / steps if steps else planned
        if left < 1.5 * pace + self._judging + 2 * self._saving:
            run["steps"] = run["step"]
            return False
        if steps < least or passed < share * self._settings["seconds"]:
            return True
        self._pace, slower = [0.0, 0], pace / planned
        if self._cost(run["plan"], slower) <= _LATE * left:
            return True
        cheaper = range(run["plan"]) if self._settings["plan"] is None else ()
        fits = [k for k in cheaper if self._cost(k, slower) <= _SPARE * left]
        if fits:
            run["plan"] = fits[-1]
            self._say(f"The device is {slower:.2f} times slower: plan {fits[-1]} from here on.")
        else:
            self._shorten(pace)
        return self._steps_left() > 0

    def _end_epoch(self, loss: float | None = None) -> None:
        """Note the epoch, judge the weights, keep them.

        Args:
            loss: of what is there before the first step.
        """
        run, (total, count) = self._run, self._run["sums"]
        record = {"epoch": run["step"] / self._batches, "plan": run["plan"], "seconds": 0.0}
        record["loss"] = total / count if count else loss
        if self._held is not None:
            began = time.monotonic()
            found = self._trainer.judge(*self._held)
            self._judging = time.monotonic() - began
            record.update(accuracy=found["accuracy"], validation_loss=found["loss"])
            rank = [found["accuracy"], -found["loss"]]
            if run["best"] is None or rank > run["best"]:
                run["best"] = rank
                self._trainer.write(self._best, {**run, "done": False})
        elif not count and loss is not None:
            self._trainer.write(self._best, {**run, "done": False})
        record["seconds"] = round(self._spent(), 3)
        run["history"].append(record)
        run["sums"] = [0.0, 0.0]
        self._save()
        if count:
            self._say(self._progress())

    def _save(self) -> None:
        began = time.monotonic()
        self._trainer.write(self._path, {**self._run, "spent": self._spent()})
        self._saving = time.monotonic() - began

    def _finish(self) -> None:
        """Take the best weights; the training has ended."""
        run = self._run
        first, last = run["history"][0], run["history"][-1]
        if not self._best.exists():
            pass  # nothing to compare with
        elif run["best"] is not None:
            if run["best"] > [last["accuracy"], -last["validation_loss"]]:
                self._trainer.read(self._best)
            self._say(f"Kept the best weights: accuracy {run['best'][0]:.1%}.")
        elif last["loss"] > first["loss"]:
            # images that were trained on before are easier than those left out: it is worse
            self._trainer.read(self._best)
            self._say(
                f"Kept the solved head alone: its loss is {first['loss']:.4f} on images left out, "
                f"that of the last epoch {last['loss']:.4f}. Take a lower rate, or more epochs."
            )
        run["done"] = True
        self._save()
        self._best.unlink(missing_ok=True)

    def _progress(self) -> str:
        run = self._run
        sums, last = run["sums"], run["history"][-1]
        loss = sums[0] / sums[1] if sums[1] else last["loss"]
        seconds = self._settings["seconds"]
        said = [
            f"epoch {math.ceil(run['step'] / self._batches)}",
            f"step {run['step']} of {run['steps']}",
            f"plan {run['plan']}",
            f"loss {loss:.4f}",
            *([f"accuracy {last['accuracy']:.1%}"] if "accuracy" in last else []),
            f"{self._spent():.0f} s" + (f" of {seconds:g}" if seconds else ""),
        ]
        return ", ".join(said)

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


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds of a function that is warm, and what it returned."""
    found, seconds = function(), []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        found = function()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), found


def _check(settings: dict[str, Any], plans: int, y: np.ndarray) -> None:
    """Refuse settings of a training that cannot be."""
    whole = {"epochs": (1, 10**6), "seed": (0, 2**63), "plan": (0, plans - 1)}
    for name, (low, high) in whole.items():
        value = settings[name]
        if name == "plan" and value is None:
            continue
        if type(value) is not int or not low <= value <= high:
            raise ValueError(
                f"`{name}` must be an integer from {low} to {high}. Received: {name}={value!r}."
            )
    for name in ("seconds", "rate"):
        value = settings[name]
        if value is not None and not 0.0 < value < 1e9:
            raise ValueError(f"`{name}` must be above 0, or None. Received: {name}={value!r}.")
    if y.min() == y.max():
        raise ValueError(
            f"The images must be of two classes at least. Received: {len(y)} of class {y[0]}."
        )
