"""What to train, at which accuracy in how many seconds: trials on photographs, everything counted.

All trials begin at the same pre-trained network. Its head is solved in closed form, but for the
trial that trains it; then some epochs on `et.Samples`, Adam on a cosine with a warm-up. Counted are
the head, selecting, tracing, computing what is kept of each sample, and the steps; the timing
profile is measured once per device before. The speed of a shared machine drifts: a fixed forward
pass is timed before and after each trial, and seconds are given at its median speed as well.

Example::

    python experiments/choice.py --data birds --weights mobilenet.h5 --part test
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.baselines import fixed, policies
from elastic_tf.commands.comparing.contest import interval
from elastic_tf.commands.training import harness, sources
from elastic_tf.files.atomic import write_json
from elastic_tf.files.table import Column, format_table
from elastic_tf.importance import measures
from elastic_tf.timing.runtime import describe_device

RESULT = Path(__file__).parent / "results" / "choice.json"
BATCH, WARM_UP, PROBE = 4, 0.15, 512
# method, epochs
ROWS = (
    ("solved", 0),
    ("traditional_tl", 3),
    ("full", 2),
    ("full", 3),
    ("elastic@0.2", 3),
    ("elastic@0.3", 2),
    ("elastic@0.3", 3),
    ("elastic@0.5", 3),
    ("random@0.5", 3),
    ("elastic_loss@0.5", 3),
)
# Chosen by the loss on validation parts of the birds and the flowers.
RATES = {"traditional_tl": 1e-3, "full": 2e-4, "0.2": 2e-4, "0.3": 2e-4, "0.5": 2e-4}


def main() -> None:
    """Run the trials that are not there yet; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder or file, as for the command train")
    parser.add_argument("--weights", required=True, help="of the network without its head")
    parser.add_argument("--model", default="mobilenet")
    parser.add_argument("--alpha", type=float, default=0.75)
    parser.add_argument("--input-size", type=int, default=128)
    parser.add_argument("--part", default="validation", choices=("validation", "test"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", default="", help="instead of those chosen, by commas")
    parser.add_argument("--rows", default="", help="as elastic@0.3:3,full:2")
    parser.add_argument("--out", type=Path, default=RESULT)
    settings = parser.parse_args()
    rows = [part.split(":") for part in settings.rows.split(",") if part] or ROWS
    trials = Trials(settings)
    for seed in range(settings.seeds):
        for method, epochs in rows:
            rates = [float(part) for part in settings.rates.split(",") if part]
            for rate in rates or [RATES.get(method.partition("@")[2] or method, 0.0)]:
                trials.run(method, int(epochs), seed, rate)
    rows = summary(trials.done, Path(settings.data).stem, settings.part)
    print(format_table(rows, COLUMNS))
    longest = [row for row in rows if row["epochs"] == max(one["epochs"] for one in rows)]
    picture = settings.out.with_name(f"choice_{Path(settings.data).stem}.png")
    plots.save(plots.accuracy_at_budgets({"equal_epochs": longest}), picture)


class Trials:
    """The trials on one data set; those of all sets are in one file."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self._settings = settings
        self._seed: int | None = None
        self.done: list[dict[str, Any]] = []
        self._kept: dict[str, Any] = {}
        if settings.out.exists():
            self._kept = json.loads(settings.out.read_text("utf-8"))
            self.done = self._kept["trials"]
        self._load(0)
        self._watch = tf.function(functools.partial(self._network(), training=False))
        self._profile = self._profiled()
        self._trained(self._network(), "elastic@0.3", 2, 0, 1e-4)  # what is slow once

    def run(self, method: str, epochs: int, seed: int, rate: float) -> None:
        """One trial, unless it is there."""
        settings = self._settings
        name = {
            "data": Path(settings.data).stem,
            "model": settings.model,
            "part": settings.part,
            "method": method,
            "epochs": epochs,
            "seed": seed,
            "rate": rate,
        }
        if any(name.items() <= trial.items() for trial in self.done):
            return
        self._load(seed)
        tf.keras.utils.set_random_seed(seed)
        model = self._network()
        before = self._speed()
        started = time.perf_counter()
        found = self._trained(model, method, epochs, seed, rate)
        seconds = time.perf_counter() - started
        reference = 0.5 * (before + self._speed())
        loss, accuracy = model.evaluate(*self._judge, batch_size=64, verbose=0)
        trial = {**name, "accuracy": accuracy, "loss": loss, "seconds": seconds}
        self.done.append({**trial, "reference_seconds": reference, **found})
        print(" ".join(f"{key}={value}" for key, value in self.done[-1].items()), flush=True)
        self.save()

    def save(self) -> None:
        """Write all trials."""
        head = {"device": describe_device(), "date": time.strftime("%Y-%m-%d")}
        write_json(self._settings.out, {**self._kept, **head, "trials": self.done})

    def _load(self, seed: int) -> None:
        """The images of a seed; each has a validation part of its own."""
        settings = self._settings
        if seed == self._seed or (settings.part == "test" and self._seed is not None):
            return
        share = 0.2 if settings.part == "validation" else 0.0
        data = sources.load(
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
        network = et.zoo.build(
            settings.model,
            classes=self._classes,
            input_size=settings.input_size,
            alpha=settings.alpha,
            weights=settings.weights,
        )
        return harness.compiled(network, "adam", 1e-4)

    def _profiled(self) -> et.TimingProfile:
        settings = self._settings
        parts = (settings.model, settings.alpha, settings.input_size, self._classes)
        path = Path("runs") / "choice" / f"profile_{'_'.join(map(str, parts))}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            batch = self._x[:BATCH], self._y[:BATCH]
            et.profile_model(self._network(), *batch, repeats=20).save(path)
        return et.TimingProfile.load(path)

    def _trained(
        self, model: et.ElasticModel, method: str, epochs: int, seed: int, rate: float
    ) -> dict[str, Any]:
        """Train the model; what the trial did."""
        name, _, rho = method.partition("@")
        found: dict[str, Any] = {}
        if name != "traditional_tl":
            found["head_seconds"] = et.solve_head(model, self._x, self._y).seconds
        if not epochs:
            return found
        steps = epochs * (len(self._x) // BATCH)
        rates = harness.rate("cosine", rate, steps, warm_up=WARM_UP)
        harness.compiled(model, "adam", rates)
        head, callbacks = et.zoo.head_tensors(model), []
        if name == "traditional_tl":
            model.set_mask(head)
        elif name == "bn_bias":
            model.set_mask(fixed.bn_bias_tensors(model))
        elif rho:
            importance = {
                "elastic": measures.depth,
                "random": policies.at_random(seed),
                "elastic_weight": measures.weight_magnitude,
                "elastic_loss": functools.partial(measures.loss_decrease, gradient="before"),
            }[name]
            probe = et.Probe((self._x, self._y), size=PROBE, seed=seed)
            callbacks = [
                et.ElasticCallback(
                    self._profile,
                    rho=float(rho),
                    interval=epochs,
                    probe=probe,
                    importance=importance,
                    required=head,
                    control=et.Control(share=0.0),
                )
            ]
        samples = et.Samples(self._x, self._y, batch_size=BATCH, seed=seed)
        model.fit(samples, epochs=epochs, verbose=0, callbacks=callbacks)
        if callbacks:
            record = callbacks[0].selections[-1]
            found["predicted_ratio"] = record.predicted_ratio
            found["trained"] = np.flatnonzero(record.mask).tolist()
        return found

    def _speed(self) -> float:
        """Seconds of a fixed forward pass, the median of ten."""
        images, times = tf.constant(self._x[:16]), []
        for _ in range(10):
            started = time.perf_counter()
            self._watch(images).numpy()
            times.append(time.perf_counter() - started)
        return float(np.median(times))


def arrays(data: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of a dataset of batches."""
    x, y = zip(*data.as_numpy_iterator())
    return np.concatenate(x), np.concatenate(y)


def summary(trials: list[dict[str, Any]], data: str, part: str) -> list[dict[str, Any]]:
    """A row for each method, its epochs and its rate: means over the seeds."""
    chosen = [one for one in trials if (one["data"], one["part"]) == (data, part)]
    usual = np.median([one["reference_seconds"] for one in chosen]) if chosen else 1.0
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in chosen:
        rows.setdefault((one["method"], one["epochs"], one["rate"]), []).append(one)
    return [
        {
            "method": method,
            "epochs": epochs,
            "rate": rate,
            "seeds": len(found),
            **dict(zip(("mean", "half_width"), interval([one["accuracy"] for one in found]))),
            "loss": np.mean([one["loss"] for one in found]),
            "raw": np.mean([one["seconds"] for one in found]),
            "seconds": usual
            * np.mean([one["seconds"] / one["reference_seconds"] for one in found]),
            "ratio": found[0].get("predicted_ratio"),
        }
        for (method, epochs, rate), found in rows.items()
    ]


COLUMNS = (
    Column("method", "method"),
    Column("epochs", "epochs", "d"),
    Column("rate", "rate", ".0e"),
    Column("seeds", "seeds", "d"),
    Column("mean", "accuracy", ".1%"),
    Column("half_width", "95 % interval, +-", ".1%"),
    Column("loss", "loss", ".3f"),
    Column("ratio", "step ratio", ".3f"),
    Column("raw", "s as passed", ".1f"),
    Column("seconds", "s", ".1f"),
)


if __name__ == "__main__":
    main()
