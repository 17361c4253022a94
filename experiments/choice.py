"""What to train, at which accuracy in how many seconds: trials on photographs, everything counted.

All trials begin at the same pre-trained network. Its head is solved in closed form, but for the
trial that trains it; then some epochs on `et.Samples`, Adam (or `--optimizer`) on a cosine with a
warm-up. By Shampoo the head is solved again at the end. Methods are those of `et.baselines`:
`elastic@0.3:5x16` is `elastic` at rho 0.3, five epochs in batches of 16; `full:1.5x16` is full
training of one and a half epochs, with its cosine ending there. Where nothing is evaluated before
the first step, the head is solved from what training keeps of each sample (`et.SolveHead`). Counted
are the head, selecting, tracing, computing what is kept of each sample, and the steps; the timing
profile is measured before. The speed of a shared machine drifts: all rows of a seed are run before
those of the next one, and means compared.

Example::

    python experiments/choice.py --data birds --weights mobilenet.h5 --part test
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf.app.commands import harness
from elastic_tf.app.commands.commandline import option, parse, run
from elastic_tf.app.commands.compare import interval
from elastic_tf.files import format_table, write_json
from elastic_tf.methods import baselines
from elastic_tf.timing import describe_device

RESULT = Path(__file__).parent / "results" / "choice.json"
WARM_UP = 0.15
ROWS = (
    *("solved:0x4", "full:1x4", "full:2x4", "full:3x4", "bn_bias:1x4", "bn_bias:3x4"),
    *("elastic@0.2:5x16", "elastic@0.3:5x16", "elastic@0.5:5x16", "elastic@0.7:5x16"),
    *("random@0.3:5x16", "random@0.5:5x16"),
)
ALWAYS = {"optimizer": "adam"}  # of trials that do not name it
# Methods that look at gradients or train everything: the head is solved before.
HEAD_FIRST = ("solved", "full", "elastictrainer")
# Chosen on validation parts of the birds: by method, or else by batch size.
RATES: dict[Any, float] = {"solved": 0.0, "bn_bias": 3e-3, 4: 2e-4, 16: 4e-4}


@dataclass(frozen=True)
class Settings:
    """What to try, on which data."""

    data: str = option(help="folder or file, as for the command train")
    weights: str = option(help="of the network without its head")
    model: str = option("mobilenet", help="network of the zoo")
    alpha: float = option(0.75, help="width multiplier of the network")
    input_size: int = option(128, help="pixels of the images")
    part: str = option("validation", help="what is judged on", choices=("validation", "test"))
    seeds: int = option(3, help="trials of each row")
    rates: tuple[float, ...] = option((), help="learning rates instead of those chosen")
    rows: tuple[str, ...] = option(ROWS, help="as elastic@0.3:5x16 full:3x4")
    optimizer: str = option("adam", help="what updates the weights", choices=("adam", "shampoo"))
    out: Path = option(RESULT, help="file of all trials")


def main() -> None:
    """Run the trials that are not there yet; print a table."""
    settings = parse(Settings, __doc__ or "", None)
    rows = [parts(row) for row in settings.rows]
    trials = Trials(settings)
    for seed in range(settings.seeds):
        for method, epochs, batch in rows:
            for rate in settings.rates or [RATES.get(method, RATES[batch])]:
                trials.run(method, epochs, batch, seed, rate)
    print(format_table(summary(trials.done, **trials.of), COLUMNS))


def parts(row: str) -> tuple[str, float, int]:
    """Method, epochs and batch size of a row.

    Raises:
        ValueError: for something else.
    """
    found = re.fullmatch(r"(.+):(\d+(?:\.\d+)?)x(\d+)", row)
    if found is None:
        raise ValueError(
            f"`rows` must be METHOD:EPOCHSxBATCH. Received: {row!r}. Write elastic@0.3:5x16."
        )
    method, epochs, batch = found.groups()
    return method, float(epochs), int(batch)


class Trials:
    """The trials on one data set; those of all sets are in one file."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        of = {name: getattr(settings, name) for name in ("model", "part", "optimizer")}
        self.of = {"data": Path(settings.data).stem, **of}
        self._profiles: dict[int, et.TimingProfile] = {}
        self._seed: int | None = None
        self.done: list[dict[str, Any]] = []
        self._kept: dict[str, Any] = {}
        if settings.out.exists():
            self._kept = json.loads(settings.out.read_text("utf-8"))
            self.done = self._kept["trials"]
        self._load(0)
        self._trained(self._network(), "elastic@0.3", 2, 16, 0, 1e-4)  # what is slow once

    def run(self, method: str, epochs: float, batch: int, seed: int, rate: float) -> dict[str, Any]:
        """What came of one trial, run unless it is there."""
        own = {"method": method, "epochs": epochs, "batch": batch, "seed": seed, "rate": rate}
        name = {**self.of, **own}
        for one in self.done:
            if name.items() <= {**ALWAYS, **one}.items():
                return one
        self._load(seed)
        tf.keras.utils.set_random_seed(seed)
        model = self._network()
        started = time.perf_counter()
        found = self._trained(model, method, epochs, batch, seed, rate)
        seconds = time.perf_counter() - started - found.get("offline_seconds", 0.0)
        loss, accuracy = model.evaluate(*self._judge, batch_size=64, verbose=0)
        trial = {**name, "accuracy": accuracy, "loss": loss, "seconds": seconds}
        self.done.append({**trial, **found})
        print(" ".join(f"{key}={value}" for key, value in self.done[-1].items()), flush=True)
        head = {"device": describe_device(), "date": time.strftime("%Y-%m-%d")}
        write_json(self._settings.out, {**self._kept, **head, "trials": self.done})
        return self.done[-1]

    def _load(self, seed: int) -> None:
        """The images of a seed; each has a validation part of its own."""
        settings = self._settings
        if seed == self._seed or (settings.part == "test" and self._seed is not None):
            return
        share = 0.2 if settings.part == "validation" else 0.0
        data = harness.images(
            settings.data,
            channels=3,
            image_size=settings.input_size,
            batch_size=1,
            seed=seed,
            validation_share=share,
        )
        self._seed, self._classes = seed, data.classes
        self._x, self._y = arrays(data.train)
        self._judge = arrays(data.test if settings.part == "test" else data.validation)

    def _network(self) -> et.ElasticModel:
        settings = self._settings
        options = {name: getattr(settings, name) for name in ("input_size", "alpha", "weights")}
        network = et.zoo.build(settings.model, classes=self._classes, **options)
        return harness.compiled(network, settings.optimizer, 1e-4)

    def _profiled(self, batch: int) -> et.TimingProfile:
        """Of steps in such batches, measured once."""
        if batch not in self._profiles:
            images = self._x[:batch], self._y[:batch]
            self._profiles[batch] = et.profile_model(self._network(), *images, repeats=20)
        return self._profiles[batch]

    def _trained(
        self, model: et.ElasticModel, method: str, epochs: float, batch: int, seed: int, rate: float
    ) -> dict[str, Any]:
        """Train the model; what the trial did."""
        name, _, rho = method.partition("@")
        found: dict[str, Any] = {}
        samples = et.Samples(self._x, self._y, batch_size=batch, seed=seed)
        if name in HEAD_FIRST or name.startswith("elastic_"):
            found["head_seconds"] = et.solve_head(model, samples).seconds
        if not epochs:
            return found
        steps, passes = round(epochs * samples.steps), math.ceil(epochs)
        rates = et.optimizers.cosine(rate, steps, warm_up=WARM_UP)
        harness.compiled(model, self._settings.optimizer, rates)
        options: dict[str, Any] = {}
        started = time.perf_counter()
        if rho:
            profile = self._profiled(batch)
            options = {"rho": float(rho), "profile": profile, "interval": passes}
        task = baselines.Task(model=model, probe=samples, seed=seed, **options)
        callbacks = baselines.get(name).callbacks(task)
        found["offline_seconds"] = time.perf_counter() - started
        is_again = self._settings.optimizer == "shampoo"
        if ("head_seconds" not in found and name != "traditional_tl") or is_again:
            callbacks.append(et.SolveHead(again=is_again))
        if epochs < passes:
            callbacks.append(_stop(model, steps))
        model.fit(samples, epochs=passes, verbose=0, callbacks=callbacks)
        if rho:
            record = callbacks[0].selections[-1]
            found["predicted_ratio"] = record.predicted_ratio
            found["trained"] = np.flatnonzero(record.mask).tolist()
            found["modes"] = record.selection.plan.to_json()
        return found


def _stop(model: et.ElasticModel, steps: int) -> tf.keras.callbacks.Callback:
    """Ends a `fit` within an epoch, after so many steps."""

    def judge(batch: int, logs: Any) -> None:
        model.stop_training = int(model.optimizer.iterations) >= steps

    return tf.keras.callbacks.LambdaCallback(on_batch_end=judge)


def arrays(data: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of a dataset of batches."""
    x, y = zip(*data.as_numpy_iterator())
    return np.concatenate(x), np.concatenate(y)


def summary(trials: list[dict[str, Any]], **of: str) -> list[dict[str, Any]]:
    """A row for each method, its epochs and its rate: means over the seeds of trials `of` these."""
    chosen = [one for one in trials if of.items() <= {**ALWAYS, **one}.items()]
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in chosen:
        key = (one["method"], one["epochs"], one.get("batch", 4), one["rate"])
        rows.setdefault(key, []).append(one)
    return [
        {
            "method": method,
            "epochs": epochs,
            "batch": batch,
            "rate": rate,
            "seeds": len(found),
            **dict(zip(("mean", "half_width"), interval([one["accuracy"] for one in found]))),
            "loss": np.mean([one["loss"] for one in found]),
            "seconds": np.mean([one["seconds"] for one in found if one["seconds"]] or [np.nan]),
            "ratio": found[0].get("predicted_ratio"),
        }
        for (method, epochs, batch, rate), found in rows.items()
    ]


COLUMNS = (
    "method epochs:g batch rate:.0e seeds mean:.1% half_width:.1% loss:.3f ratio:.3f seconds:.1f"
).split()


if __name__ == "__main__":
    run(main)
