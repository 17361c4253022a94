"""From a fresh process with an empty cache: full training against `finetune`, every second counted.

    python experiments/first_second.py --data FOLDER --weights FILE --out runs/first.json

Full training begins with the solved head and mirror images as `finetune` does, trains every tensor
by Adam for five epochs, at the best of some rates on held-out images of the first seed, which falls
on a cosine after a warm-up. `--reference usual` is the script of the published guides in its place:
random flips and rotations, a frozen base without its top, dropout and a new dense layer by Adam at
1e-3; then everything by Adam at 1e-5; each with EarlyStopping on held-out images.

`finetune` has shares of the reference's seconds; "recipe" is `finetune` without an end, which
trains every tensor for five epochs; "head" the solved head alone. Every second of the process
counts but for reading the images, which is the same for all; test images are looked at once, after
the clock has stopped.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import format_table, write_json

EPOCHS, PATIENCE = (10, 10), 2  # of the two parts, at most
FULL_EPOCHS, WARM_UP, BATCH = 5, 0.15, 16
RATES = (1e-4, 2e-4, 4e-4, 8e-4)
SHARES = (1 / 6, 1 / 4, 1 / 2)  # of the reference's seconds
COLUMNS = ("way", "seed", "seconds:.1f", "of_reference:.2f:of the reference", "accuracy:.1%")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Images, network and seeds."""

    data: Path = option(help="a folder with train/CLASS and test/CLASS")
    weights: Path = option(help="file of the base's weights, without top")
    model: str = option(
        "mobilenet", help="mobilenet (0.75) or mobilenet_v2", choices=("mobilenet", "mobilenet_v2")
    )
    seeds: int = option(1, help="how many")
    out: Path = option(
        Path("runs/first_second.json"), help="JSON file of the results; seeds in it stay"
    )
    mirrored: bool = option(False, help="train on mirror images, too")
    augmented: bool = option(False, help="let the network begin with random layers, for all ways")
    reference: str = option("full", help="what it is compared with", choices=("full", "usual"))
    way: str | None = option(None, help="for the processes that this one starts")
    seconds: float = option(0.0, help="likewise")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run each way in a process of its own; print and write what came out."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.way is not None:
        one(settings)
        return
    reference, tried, found = settings.reference, list[Any](), list[Any]()
    if settings.out.exists():
        before = json.loads(settings.out.read_text("utf-8"))
        tried, found = before["rates"], before["runs"]
    if reference == "full" and not tried:
        tried = [fresh(settings, f"full@{rate}", 0, 0.0) for rate in RATES]
    if tried:
        reference = max(tried, key=lambda one: float(one["held_out"]))["way"]
    for seed in range(settings.seeds):
        if any(one["seed"] == seed for one in found):
            continue
        known = [one for one in tried if one["way"] == reference and one["seed"] == seed]
        of_seed = known[0] if known else fresh(settings, reference, seed, 0.0)
        found += [of_seed, fresh(settings, "head", seed, 0.0), fresh(settings, "recipe", seed, 0.0)]
        for share in SHARES:
            found.append(fresh(settings, "finetune", seed, share * of_seed["seconds"]))
        for one_way in found:
            if one_way["seed"] == seed:
                one_way["of_reference"] = one_way["seconds"] / of_seed["seconds"]
        told = {"model": settings.model, "data": settings.data.name, "runs": found, "rates": tried}
        write_json(settings.out, told)
    print(format_table(found, COLUMNS))
    from elastic_tf import plots

    title = f"{settings.data.name}, {settings.model}, every second of a fresh process"
    figure = plots.accuracy_at_budgets({"equal_epochs": means(found)}, title=title)
    plots.save(figure, settings.out.with_suffix(".png"))


def means(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seconds and accuracy of each way in as many seconds, over the seeds."""
    names = {"finetune": "finetune", "recipe": "finetune without an end", "head": "head alone"}
    ways: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for seed in {one["seed"] for one in found}:
        for k, one in enumerate(each for each in found if each["seed"] == seed):
            ways.setdefault((names.get(one["way"], "full"), k), []).append(one)
    return [
        {
            "method": name,
            "seconds": sum(one["seconds"] for one in of_way) / len(of_way),
            "mean": sum(one["accuracy"] for one in of_way) / len(of_way),
            "half_width": None,
        }
        for (name, _), of_way in ways.items()
    ]


def fresh(settings: Settings, way: str, seed: int, seconds: float) -> dict[str, Any]:
    """One training in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "result.json"
        command = [sys.executable, __file__, "--data", str(settings.data)]
        command += ["--weights", str(settings.weights), "--model", settings.model]
        command += ["--way", f"{way}:{seed}", "--seconds", str(seconds), "--out", str(out)]
        command += ["--mirrored"] * settings.mirrored + ["--augmented"] * settings.augmented
        subprocess.run(command, check=True)
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
    (x, y), test = (images(settings.data / part) for part in ("train", "test"))
    order = np.random.default_rng(int(seed)).permutation(len(y))
    held, kept = order[: len(y) // 10], order[len(y) // 10 :]
    started = time.perf_counter()
    base, classes = network(settings.model, settings.weights), int(y.max()) + 1
    base = with_random_layers(base) if settings.augmented else base
    train, validation = (x[kept], y[kept]), (x[held], y[held])
    # mirror images where they are like the others
    views = {"augment": tf.image.stateless_random_flip_left_right, "views": 2}
    samples = et.Samples(*train, batch_size=BATCH, **(views if settings.mirrored else {}))
    if way == "usual":
        model = usual(base, train, validation, classes)
    elif way in ("finetune", "recipe"):
        passed = imported + time.perf_counter() - started
        seconds = settings.seconds - passed if way == "finetune" else 1e5
        model = et.finetune(base, samples, validation, seconds=seconds, verbose=0)
    else:
        model = full(base, samples, classes, rate=float(way.partition("@")[2] or 0))
    passed = imported + time.perf_counter() - started
    judged = [
        model.evaluate(*data, verbose=0, return_dict=True)["accuracy"]
        for data in (test, validation)
    ]
    told = {"way": way, "seed": int(seed), "seconds": passed}
    write_json(settings.out, told | dict(zip(("accuracy", "held_out"), judged)))


def full(base: Any, samples: Any, classes: int, *, rate: float) -> Any:
    """Every tensor by Adam after the solved head; with a rate of 0 the head alone."""
    import elastic_tf as et

    schedule = et.optimizers.cosine(rate or 1.0, FULL_EPOCHS * samples.steps, warm_up=WARM_UP)
    model = with_head(base, classes, schedule)
    if rate:
        head = et.SolveHead(again=False)
        model.fit(samples, epochs=FULL_EPOCHS, verbose=0, callbacks=[head])
    else:
        et.solve_head(model, samples)
    return model


def with_head(base: Any, classes: int, rate: Any) -> Any:
    """An elastic model with a new head, ready to be trained by Adam."""
    import tensorflow as tf

    import elastic_tf as et

    head = tf.keras.layers.Dense(classes)(base.output)
    model = et.ElasticModel.from_model(tf.keras.Model(base.input, head))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"metrics": ["accuracy"], "statistics": "stored"}
    model.compile(et.optimizers.adam(rate), loss, **options)
    return model


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


def network(model: str, weights: Path) -> Any:
    """The pre-trained base, with pooling at its end."""
    import tensorflow as tf

    options = {"input_shape": (128, 128, 3), "include_top": False, "weights": None}
    if model == "mobilenet":
        base = tf.keras.applications.MobileNet(alpha=0.75, pooling="avg", **options)
    else:
        base = tf.keras.applications.MobileNetV2(pooling="avg", **options)
    base.load_weights(weights)
    return base


def with_random_layers(base: Any) -> Any:
    """The base behind layers that change each image at random."""
    import tensorflow as tf

    layers = tf.keras.layers
    flip, turn, zoom = (
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(0.05),
        layers.RandomZoom(0.1),
    )
    image = tf.keras.Input(base.input_shape[1:])
    return tf.keras.Model(image, base(zoom(turn(flip(image)))))


def images(folder: Path) -> tuple[Any, Any]:
    """All images of a folder of classes, 128 px, -1 to 1, and their class numbers."""
    import numpy as np

    from elastic_tf.lite import disk

    files, labels, _ = disk.class_folders(folder, None)
    found = [disk.read_image(file, (128, 128, 3)) for file in files]
    return np.stack(found).astype(np.float32) / 127.5 - 1.0, labels


if __name__ == "__main__":
    main()
