"""A few images of each new class: what adapting reaches, in which time and memory.

Tasks of various numbers of classes and images are drawn from classes that nothing was chosen on;
all methods adapt to the same ones, from the same weights. The learning rate of each method is the
best on tasks of other classes.

    python experiments/fewshot.py --case gtsrb --assets FOLDER --out experiments/results/NAME.json
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf.commands.commandline import option, parse
from elastic_tf.files import atomic
from elastic_tf.files.table import Column, format_table

L = tf.keras.layers
RATES = {
    "nothing": (),
    "last layer": (3e-4, 1e-3, 3e-3),
    "TinyTrain": (3e-4, 1e-3, 3e-3),
    "exact rule": (3e-4, 1e-3, 3e-3),
    "exact rule, all kernels": (),  # that of the exact rule
    "TinyTrain at 50 %": (),  # that of TinyTrain
    "plan of another task": (),  # likewise
    "everything": (1e-4, 3e-4, 1e-3),
}
COLUMNS = (
    "method",
    "rate",
    Column("accuracy", "accuracy", ".1%"),
    Column("interval", "95 %", ".1%"),
    Column("seconds", "s", ".1f"),
    Column("selection", "choosing s", ".2f"),
    Column("memory", "MiB", ".2f"),
    Column("macs", "backward", ".1%"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure."""

    case: str = option(help="set of images", choices=("gtsrb", "omniglot"))
    assets: Path = option(help="folder with data/ and weights/")
    out: Path = option(help="JSON file for the result")
    episodes: int = option(20, help="tasks that the methods are compared on")
    tried: int = option(4, help="tasks on which each rate is tried")
    steps: int = option(40, help="of adapting")
    methods: tuple[str, ...] = option((), help=f"of {', '.join(RATES)}; all if left out")
    meta_steps: int = option(0, help="of meta-training before; 0: none")
    rates: Path | None = option(None, help="result whose learning rates are taken")
    meta_rate: float = option(1e-3, help="highest rate of meta-training, of Adam")


def main() -> None:
    """Meta-train, choose the rates, compare."""
    settings = parse(Settings, __doc__ or "", None)
    tf.keras.utils.set_random_seed(0)
    network, training, validation, test = CASES[settings.case](settings.assets)
    net = et.fewshot.ProtoNet.of(network)
    started = time.perf_counter()
    if settings.meta_steps:
        meta = et.fewshot.ProtoNet(net.network, bn_training=settings.case == "omniglot")
        rate = et.optimizers.cosine(settings.meta_rate, settings.meta_steps, warm_up=0.05)
        tasks = et.fewshot.episodes(training, (5, 10), shots=5, query=5, seed=0)
        adam = et.optimizers.adam(rate)
        et.fewshot.meta_train(
            meta, tasks, epochs=1, steps=settings.meta_steps, optimizer=adam, verbose=2
        )
    meta_seconds = time.perf_counter() - started
    limits = {"way": (5, 10), "support_limit": 50}
    trials = et.fewshot.episodes(validation, seed=1, **limits)
    tasks = et.fewshot.episodes(test, seed=2, **limits)
    kernels = np.flatnonzero(net.costs.macs)
    inspect = 0.4 if len(kernels) > 10 else 1.0
    first = trials[0]
    plan = et.fewshot.adapt(net, first.support, first.support_labels, inspect=inspect, steps=1).plan
    options: dict[str, dict[str, Any]] = {
        "nothing": {"steps": 0},
        "last layer": {"plan": np.arange(len(net.model.tensors)) == kernels[-1]},
        "TinyTrain": {"inspect": inspect},
        "exact rule": {"inspect": inspect, "rule": et.fewshot.exact_rule},
        "exact rule, all kernels": {"inspect": 1.0, "rule": et.fewshot.exact_rule},
        "TinyTrain at 50 %": {"inspect": 1.0, "compute": 0.5},
        "plan of another task": {"plan": plan},
        "everything": {"plan": et.Plan.full(len(net.model.tensors))},
    }
    rows: list[dict[str, Any]] = []
    rates = {row["method"]: row["rate"] for row in read(settings.rates)["methods"]}
    result = {**dataclasses.asdict(settings), "meta_seconds": meta_seconds, "methods": rows}
    for left_out in ("assets", "out", "rates"):
        del result[left_out]
    for name, given in options.items():
        if settings.methods and name not in settings.methods:
            continue
        given = {"steps": settings.steps, **given}
        tried = {}
        for rate in () if name in rates else RATES[name]:
            scores = et.fewshot.evaluate(
                net, trials, settings.tried, learning_rate=rate, verbose=0, **given
            )
            tried[rate] = scores.accuracy
            print(f"{name} at {rate:g}: {scores}", flush=True)
        if tried:
            rates[name] = max(tried, key=lambda one: tried[one])
        alike = "exact rule" if name.startswith("exact") else "TinyTrain"
        rate = rates.get(name) or rates.get(alike, 1e-3)
        scores = et.fewshot.evaluate(
            net, tasks, settings.episodes, learning_rate=rate, verbose=0, **given
        )
        rows.append(
            {
                "method": name,
                "rate": rate,
                "tried": {str(one): value for one, value in tried.items()},
                "accuracy": scores.accuracy,
                "interval": scores.interval,
                "accuracies": [round(float(one), 4) for one in scores.accuracies],
                "seconds": float(np.median(scores.seconds)),
                "selection": float(np.median(scores.selection_seconds)),
                "memory": float(scores.memory.mean()) / 2**20,
                "macs": float(scores.macs.mean()) / net.costs.full_macs,
            }
        )
        print(format_table(rows, COLUMNS), flush=True)
        atomic.write_json(settings.out, result)


def read(path: Path | None) -> dict[str, Any]:
    """A result; an empty one of no file."""
    return {"methods": []} if path is None else json.loads(path.read_text())


def gtsrb(assets: Path) -> tuple[Any, ...]:
    """MobileNet 0.75 from ImageNet's weights; half of the traffic signs for all choices."""
    data = np.load(assets / "data/gtsrb_fewshot/gtsrb43x20_64.npz")
    weights = assets / "weights/mobilenet_0.75_224_no_top.weights.h5"
    options = {"classes": 2, "input_size": 64, "alpha": 0.75, "weights": weights}
    images, labels = data["x"], data["y"].astype(int)
    known = np.isin(labels, np.random.default_rng(0).permutation(43)[:21])
    chosen = (images[known], labels[known])
    return et.zoo.build("mobilenet", **options), chosen, chosen, (images[~known], labels[~known])


def omniglot(assets: Path) -> tuple[Any, ...]:
    """Four convolutions from random weights; five alphabets to meta-train, one to choose, two."""
    data = np.load(assets / "data/omniglot/omniglot_small_28.npz")
    images, labels = data["images"][..., None] / np.float32(255), data["character"].astype(int)
    alphabet = data["character_alphabet"][labels]
    inputs = x = L.Input((28, 28, 1))
    for _ in range(4):
        x = L.Conv2D(32, 3, padding="same", use_bias=False)(x)
        x = L.MaxPool2D()(L.ReLU()(L.BatchNormalization()(x)))
    parts = (alphabet < 5, alphabet == 5, alphabet > 5)
    network = tf.keras.Model(inputs, L.Flatten()(x))
    return (network, *((images[part], labels[part]) for part in parts))


CASES = {"gtsrb": gtsrb, "omniglot": omniglot}

if __name__ == "__main__":
    main()
