"""From a fresh process with an empty cache: the usual transfer-learning script against `finetune`.

    python experiments/first_second.py --data FOLDER --weights FILE --out runs/first.json

The usual script is that of the published guides: random flips and rotations, a frozen base without
its top, dropout and a new dense layer by Adam at 1e-3; then everything by Adam at 1e-5; each with
EarlyStopping on held-out images. `finetune` has 0.6 of its seconds, and for the table 0.3 and 1.
Every second of the process counts but for reading the images, which is the same for both; test
images are looked at once, after the clock has stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic_tf.commands.commandline import option, parse
from elastic_tf.files.atomic import write_json
from elastic_tf.files.table import Column, format_table

EPOCHS, PATIENCE = (10, 10), 2  # of the two parts, at most
SHARES = (0.3, 0.6, 1.0)  # of the usual script's seconds
COLUMNS = (
    "way",
    "seed",
    Column("seconds", "seconds", ".1f"),
    Column("of_usual", "of the usual", ".2f"),
    Column("accuracy", "test accuracy", ".1%"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Images, network and seeds."""

    data: Path = option(help="a folder with train/CLASS and test/CLASS")
    weights: Path = option(help="file of the base's weights, without top")
    model: str = option(
        "mobilenet", help="mobilenet (0.75) or mobilenet_v2", choices=("mobilenet", "mobilenet_v2")
    )
    seeds: int = option(1, help="how many")
    out: Path = option(Path("runs/first_second.json"), help="JSON file of the results")
    way: str | None = option(None, help="for the processes that this one starts")
    seconds: float = option(0.0, help="likewise")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run each way in a process of its own; print and write what came out."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.way is not None:
        one(settings)
        return
    found = []
    for seed in range(settings.seeds):
        usual = fresh(settings, "usual", seed, 0.0)
        found.append(usual)
        for share in SHARES:
            found.append(fresh(settings, "finetune", seed, share * usual["seconds"]))
    for one_way in found:
        of_seed = next(x for x in found if x["way"] == "usual" and x["seed"] == one_way["seed"])
        one_way["of_usual"] = one_way["seconds"] / of_seed["seconds"]
    print(format_table(found, COLUMNS))
    told = {"model": settings.model, "data": settings.data.name, "runs": found}
    write_json(settings.out, told)


def fresh(settings: Settings, way: str, seed: int, seconds: float) -> dict[str, Any]:
    """One training in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        out = Path(cache) / "result.json"
        command = [sys.executable, __file__, "--data", str(settings.data)]
        command += ["--weights", str(settings.weights), "--model", settings.model]
        command += ["--way", f"{way}:{seed}", "--seconds", str(seconds), "--out", str(out)]
        environment = {**os.environ, "ELASTIC_TF_CACHE": cache}
        subprocess.run(command, check=True, env=environment)
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    print(found, flush=True)
    return found


def one(settings: Settings) -> None:
    """Train once in this process."""
    way, _, seed = (settings.way or "").partition(":")
    began = time.perf_counter()
    import numpy as np
    import tensorflow as tf

    import elastic_tf as et

    imported = time.perf_counter() - began
    tf.keras.utils.set_random_seed(int(seed))
    sets = [images(settings.data / part) for part in ("train", "test")]
    (x, y), (x_test, y_test) = sets
    order = np.random.default_rng(int(seed)).permutation(len(y))
    held, kept = order[: len(y) // 10], order[len(y) // 10 :]
    started = time.perf_counter()
    base = network(settings)
    train, validation = (x[kept], y[kept]), (x[held], y[held])
    if way == "usual":
        model = usual(base, train, validation, int(y.max()) + 1)
    else:
        seconds = settings.seconds - imported - (time.perf_counter() - started)
        model = et.finetune(base, train, validation, seconds=seconds, verbose=0)
    passed = imported + time.perf_counter() - started
    accuracy = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
    write_json(
        settings.out, {"way": way, "seed": int(seed), "seconds": passed, "accuracy": accuracy}
    )


def usual(base: Any, train: Any, validation: Any, classes: int) -> Any:
    """The script of the guides."""
    import tensorflow as tf

    keras = tf.keras
    base.trainable = False
    inputs = keras.Input(base.input_shape[1:])
    x = keras.layers.RandomRotation(0.1)(keras.layers.RandomFlip("horizontal")(inputs))
    x = keras.layers.Dropout(0.2)(base(x, training=False))
    model = keras.Model(inputs, keras.layers.Dense(classes)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for epochs, rate in zip(EPOCHS, (1e-3, 1e-5)):
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        stop = keras.callbacks.EarlyStopping(patience=PATIENCE, restore_best_weights=True)
        options = {"epochs": epochs, "batch_size": 32, "verbose": 0, "callbacks": [stop]}
        model.fit(*train, validation_data=validation, **options)
        base.trainable = True
    return model


def network(settings: Settings) -> Any:
    """The pre-trained base, with pooling at its end."""
    import tensorflow as tf

    options = {"input_shape": (128, 128, 3), "include_top": False, "weights": None}
    if settings.model == "mobilenet":
        base = tf.keras.applications.MobileNet(alpha=0.75, pooling="avg", **options)
    else:
        base = tf.keras.applications.MobileNetV2(pooling="avg", **options)
    base.load_weights(settings.weights)
    return base


def images(folder: Path) -> tuple[Any, Any]:
    """All images of a folder of classes, 128 px, -1 to 1, and their class numbers."""
    import numpy as np
    from PIL import Image

    found, labels = [], []
    for number, place in enumerate(sorted(folder.iterdir())):
        for file in sorted(place.iterdir()):
            image = Image.open(file).convert("RGB").resize((128, 128), Image.Resampling.BILINEAR)
            found.append(np.asarray(image, np.float32) / 127.5 - 1.0)
            labels.append(number)
    return np.stack(found), np.array(labels)


if __name__ == "__main__":
    main()
