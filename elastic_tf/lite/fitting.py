"""One training: the solved head, the choice of a plan, steps, states, and the clock."""

from __future__ import annotations

import math
import tempfile
import time
import zlib
from collections.abc import Sequence
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
_SPARE = 0.95  # of the seconds left: what the steps may take
_EVERY = 60.0  # seconds between two states


class Fit:
    """`Trainer.fit` on data that are checked; options are its arguments that decide the result."""

    def __init__(
        self, trainer: Any, data: Any, held: Any, path: Path, began: float, show: bool, options: Any
    ) -> None:
        _check(options, len(trainer.plans), data[1])
        self._trainer, self._held, self._options, self._path = trainer, held, options, path
        (self._x, self._y), self._began, self._show = data, began, show
        head = trainer.model["head"]
        self._head = [head[name] for name in ("kernel", "bias") if head[name] is not None]
        self._best = path.with_name(f"{path.name}.best")
        self._batches = math.ceil(len(self._y) / trainer.batch_size)
        self._planned = options["epochs"] * self._batches  # steps
        self._kept: tuple[str | None, Any] = None, None  # a function, and what it says
        self._end = 0.0  # seconds after an epoch
        some = self._x[np.arange(0, len(self._y), max(len(self._y) // 64, 1))]
        said = f"{options} {self._x.shape} {self._x.dtype} {held is None}".encode()
        self._run: dict[str, Any] = {
            "key": zlib.crc32(some.tobytes() + self._y.tobytes() + said),
            **{"done": False, "step": 0, "steps": self._planned, "spent": 0.0},
            **{"plan": None, "start": 1.0, "history": [], "kept": 0},
            **{"total": 0.0, "count": 0},  # of losses in this epoch
        }

    def run(self) -> list[dict[str, Any]]:
        """Train, or go on."""
        if not self._resume():
            self._end_epoch(self._solve_head())
        if not self._run["done"]:
            if self._run["plan"] is None:
                self._choose()
                if self._run["steps"]:  # the head is as unsure of these images as of others
                    start = np.float32(self._run["start"])
                    self._set_head([start * self._trainer.weights[k] for k in self._head])
            self._train()
            self._finish()
        return list(self._run["history"])

    def _resume(self) -> bool:
        """Whether there is a state of this training, which is taken."""
        names = self._trainer.class_names
        found = self._trainer.load(self._path) if self._path.exists() else {"done": True}
        is_this = found.get("key") == self._run["key"]
        if is_this:
            self._run = found
            self._say(f"'{self._path}' has made {found['step']} of {found['steps']} steps.")
        elif not found["done"]:
            raise ValueError(
                "A training that was interrupted goes on with the same arguments and images. "
                f"Received: others than those of '{self._path}', which has made {found['step']} "
                "steps. Use the same, or remove it to begin anew."
            )
        else:  # its weights are a beginning, for other classes maybe
            self._trainer.class_names = names or self._trainer.class_names
            self._trainer.slots, self._trainer.steps = {}, {}
        return is_this

    def _solve_head(self) -> float:
        """Solve the head, and return its loss on images left out."""
        trainer = self._trainer
        features = self._filled(trainer.model["head"]["features"])
        wanted, weight = np.eye(trainer.model["classes"])[self._y], np.ones(len(self._y))
        intercept = len(self._head) > 1
        ridge = Ridge(features, wanted, weight, intercept=intercept, empty=self._scratch)
        found = ridge.head(crossentropy)
        self._set_head([found.kernel.astype(np.float32), found.bias.astype(np.float32)])
        self._run["start"] = found.start
        accuracy = (found.left_out.argmax(axis=1) == self._y).mean()
        self._say(f"The head is solved: accuracy {accuracy:.1%} on images left out.")
        return float(crossentropy(found.left_out, wanted).mean())

    def _set_head(self, values: Sequence[np.ndarray]) -> None:
        self._trainer.weights.update(zip(self._head, values))
        self._trainer.close()

    def _filled(self, name: str | None) -> Any:
        """What a function says of every image, on the disk; no function: the images."""
        if name and self._kept[0] != name:
            rows = Rows(self._trainer.folder)
            for part in self._trainer.features(name, self._x):
                rows.append(part)
            self._kept = name, rows
        return self._kept[1] if name else self._x

    def _scratch(self, shape: tuple[int, int]) -> np.ndarray:
        with tempfile.TemporaryFile(dir=self._trainer.folder) as file:  # the array holds it open
            return np.memmap(file, np.float64, "w+", shape=shape)

    def _choose(self) -> None:
        """Time each plan by steps that are thrown away; the largest one that fits is trained."""
        run, trainer, only = self._run, self._trainer, self._options["plan"]
        ladder = range(len(trainer.plans)) if only is None else [only]
        run["plan"] = ladder[-1]
        if self._options["seconds"] is None:
            return
        batch = trainer.batch(self._x, self._y, slice(0, trainer.batch_size))
        for k in ladder:
            try:
                before, step = trainer.seconds(k, batch)
            except (RuntimeError, MemoryError):
                if k == ladder[0]:
                    raise
                self._say(f"Plan {k} does not fit into the memory.")
                break
            is_kept = trainer.plans[k]["features"] == self._kept[0]
            left = _SPARE * (self._left() - (0.0 if is_kept else before * self._batches))
            left -= (self._options["epochs"] + 1) * self._end
            if k != ladder[0] and self._planned * step > left:
                break
            run["plan"], run["steps"] = k, min(self._planned, max(int(left / step), 0))
        self._say(f"There is time for {run['steps']} steps of plan {run['plan']}.")

    def _left(self) -> float:
        return float((self._options["seconds"] or math.inf) - self._spent())

    def _spent(self) -> float:
        return float(self._run["spent"] + time.monotonic() - self._began)

    def _train(self) -> None:
        run, size, batches = self._run, self._trainer.batch_size, self._batches
        rate = self._options["rate"] or self._trainer.model["optimizer"]["learning_rate"]
        order, source = None, self._source()
        saved = shown = began = time.monotonic()
        first = run["step"]  # since then this pace is kept
        while run["step"] < run["steps"]:
            epoch, at = divmod(run["step"], batches)
            if order is None or at == 0:
                order = np.random.default_rng([0, epoch]).permutation(len(self._y))
            rows = order[at * size : (at + 1) * size]
            loss = self._step(source, rows, rate_at(rate, run["step"], run["steps"]))
            run["total"], run["count"] = run["total"] + loss * len(rows), run["count"] + len(rows)
            run["step"] += 1
            now, is_end = time.monotonic(), run["step"] % batches == 0
            pace = (now - began) / (run["step"] - first)
            if now - shown > 0.5 or is_end:
                said = f"step {run['step']} of {run['steps']}, plan {run['plan']}, "
                said += f"loss {run['total'] / run['count']:.4f}, {self._spent():.0f} s"
                self._say(said, end="\n" if is_end else "\r")
                shown = now
            if is_end:
                self._end_epoch()
                saved = began = time.monotonic()
                first = run["step"]
                if self._options["seconds"] is not None:  # the clock has the last word
                    fits = int((_SPARE * self._left() - self._end) / pace)
                    run["steps"] = min(self._planned, run["step"] + max(fits, 0))
            elif now - saved > _EVERY:
                self._save()
                saved = time.monotonic()
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
            return all(record["loss"] < one["loss"] for one in history[:-1])
        best = max(one["accuracy"] for one in history)
        return is_as_good(record["accuracy"], best, len(self._held[1]))

    def _save(self) -> None:
        self._trainer.save(self._path, {**self._run, "spent": self._spent()})

    def _finish(self) -> None:
        """Take the weights that are kept; the training has ended."""
        history = self._run["history"]
        kept = history[self._run["kept"]]
        if kept is not history[-1]:
            self._trainer.load(self._best)
            self._say(f"Kept the weights of epoch {kept['epoch']:g}. Take a lower rate?")
        self._run["done"] = True
        self._save()
        self._best.unlink(missing_ok=True)

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


def _check(options: dict[str, Any], plans: int, y: np.ndarray) -> None:
    """Refuse what no training can be of."""
    most = {
        "epochs": (1, 10**6),
        "plan": (0, plans - 1),
        "seconds": (1e-9, 1e9),
        "rate": (1e-9, 1e9),
    }
    for name, (low, high) in most.items():
        value = options[name]
        if value is not None and not low <= value <= high:
            raise ValueError(
                f"`{name}` must be from {low:g} to {high:g}. Received: {name}={value!r}."
            )
    if y.min() == y.max():
        raise ValueError(
            f"The images must be of two classes at least. Received: {len(y)} of class {y[0]}."
        )
