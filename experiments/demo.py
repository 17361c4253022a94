"""Adapt a small pre-trained network to another domain: all of it, and in a part of the seconds.

The network knows scikit-learn's handwritten digits as they are, at 64 by 64 pixels; the other
domain shows them turned, inverted, paler and noisy. Full training begins with the head solved in
closed form, and trains every tensor by Adam. `finetune` gets a third and half of its seconds, as
a wall clock counts them. Nothing is downloaded. Results and a picture go to runs/demo/.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.app import runs
from elastic_tf.app.commands import harness
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import format_table, to_json, write_json
from elastic_tf.timing import describe_device

WEIGHTS = Path(__file__).parent / "weights" / "digits_resnet_64.h5"
IMAGE_SIZE, BATCH, EPOCHS, SEED = 64, 32, 5, 0
SHARES = {"a third": 1 / 3, "half": 1 / 2}  # of full training's seconds


@dataclasses.dataclass(frozen=True)
class Settings:
    """The comparison."""

    out: Path = option(Path("runs/demo"), help="directory for the results and the picture")
    quick: bool = option(False, help="a short form that shows that everything works")


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train all of it and parts, print the table, draw."""
    settings = parse(Settings, __doc__ or "", arguments)
    epochs, data = 2 if settings.quick else EPOCHS, other_domain(settings.quick)
    seconds, accuracies = trained_in_full(epochs, data)
    shown = {"full": (seconds, accuracies)}
    ends = [(f"full, {epochs} epochs", accuracies[-1], seconds[-1])]
    for part, share in list(SHARES.items())[settings.quick :]:
        print(f"finetune in {part} of these {seconds[-1]:.0f} s:", flush=True)
        tf.keras.utils.set_random_seed(SEED)
        allowed = 60.0 if settings.quick else share * seconds[-1]  # so few images leave no time
        started = time.perf_counter()
        model = et.finetune(
            pre_trained(data), data.samples(), seconds=allowed, epochs=epochs, verbose=2
        )
        took = time.perf_counter() - started
        ends.append((f"finetune, {part} of it", accuracy(model, data), took))
    shown["finetune"] = tuple(np.array([end[k] for end in ends[1:]]) for k in (2, 1))
    names = ("method", "accuracy", "training_seconds")
    rows = [dict(zip(names, end)) for end in ends]
    print("\n" + format_table(rows, runs.COLUMNS[: len(names)]))
    axes = {"x": "seconds", "y": "test accuracy (%)"}
    percent = {name: (x, 100 * np.asarray(y)) for name, (x, y) in shown.items()}
    lines = plots.lines(percent, **axes, title="Digits of another domain")
    plots.save(lines, settings.out / "accuracy.png")
    result = {"settings": settings, "device": describe_device(), "rows": rows}
    write_json(settings.out / "result.json", to_json(result))
    print(f"Picture: {settings.out}/accuracy.png")
    return rows


def trained_in_full(epochs: int, data: et.data.ImageData) -> tuple[np.ndarray, list[float]]:
    """Seconds until the end of each epoch, without those of testing, and accuracy there."""
    tf.keras.utils.set_random_seed(SEED)
    started = time.perf_counter()
    network = pre_trained(data)
    rate = et.optimizers.cosine(1e-3, epochs * data.steps_per_epoch, warm_up=0.1)
    model = harness.compiled(network, "adam", rate)
    built = time.perf_counter() - started
    print(f"Accuracy on the other domain before adapting: {accuracy(model, data):.1%}")
    said = Said()
    model.fit(
        data.samples(),
        epochs=epochs,
        validation_data=data.test,
        verbose=0,
        callbacks=[said, et.SolveHead(again=False)],
    )
    return built + np.array(said.seconds), model.history.history["val_accuracy"]


class Said(tf.keras.callbacks.Callback):
    """A line for each epoch, and the seconds since `fit` began, without those of testing."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self._started = list[float](), time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:
        self._tested = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self._started += time.perf_counter() - self._tested

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        print(f"full, epoch {epoch + 1}: {logs['val_accuracy']:.1%}", flush=True)


def accuracy(model: tf.keras.Model, data: et.data.ImageData) -> float:
    """On the test images."""
    return float(model.evaluate(data.test, verbose=0, return_dict=True)["accuracy"])


def other_domain(is_quick: bool = False) -> et.data.ImageData:
    """The digits as the network does not know them; a few of them where it is to be quick."""
    data = harness.images(
        "digits:shifted",
        channels=1,
        image_size=IMAGE_SIZE,
        batch_size=BATCH,
        seed=SEED,
        validation_share=0.9 if is_quick else 0.0,  # a tenth is left to train on
    )
    return dataclasses.replace(data, test=data.test.take(4)) if is_quick else data


def pre_trained(data: et.data.ImageData) -> tf.keras.Model:
    """The network that knows the digits as they are."""
    return et.zoo.build(
        "digits_resnet", classes=data.classes, input_size=IMAGE_SIZE, weights=WEIGHTS
    )


if __name__ == "__main__":
    main()
