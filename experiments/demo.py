"""Adapt a small pre-trained network to another domain, fully and elastically, side by side.

The network knows scikit-learn's handwritten digits as they are, at 64 by 64 pixels; the other
domain shows them turned, inverted, paler and noisy. Both trainings begin with the head solved in
closed form. An elastic epoch takes less than half of a full one, so that more of them fit into less
time. Nothing is downloaded. Results and pictures go to runs/demo/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.training import harness, recording, sources
from elastic_tf.app.runs import run
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import to_json
from elastic_tf.files.table import format_table
from elastic_tf.timing.runtime import describe_device

WEIGHTS = Path(__file__).parent / "weights" / "digits_resnet_64.h5"
IMAGE_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """The comparison."""

    out: Path = option(Path("runs/demo"), help="directory for results and pictures")
    rho: float = option(0.4, help="allowed step time / full step time of the elastic run")
    epochs: int = option(5, help="passes over the training images of the full run")
    elastic_epochs: int = option(7, help="the same of the elastic run")
    batch_size: int = option(32, help="images in a training step")
    seed: int = option(0, help="of order and draws")
    quick: bool = option(False, help="a short form that shows that everything works")


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train both, print the table, draw."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.quick:
        settings = dataclasses.replace(settings, epochs=2, elastic_epochs=2)
    data = other_domain(settings)
    if settings.quick:
        data = dataclasses.replace(data, test=data.test.take(4))
    epochs = {"full": settings.epochs, "elastic": settings.elastic_epochs}
    full, elastic = (adapted_model(settings, data, epochs[name]) for name in epochs)
    _, before = full.evaluate(data.test, verbose=0)
    print(f"Accuracy on the other domain before adapting: {before:.1%}")
    callback = et.ElasticCallback(rho=settings.rho)
    called = {"full": "full", "elastic": f"elastic, rho={settings.rho:g}"}
    models, chosen = {"full": full, "elastic": elastic}, {"full": [], "elastic": [callback]}
    clocks = {name: recording.TrainingClock() for name in models}
    for name, model in models.items():
        model.fit(
            data.samples(),
            epochs=epochs[name],
            validation_data=data.test,
            verbose=0,
            callbacks=[clocks[name], *chosen[name], et.SolveHead(), Said(name)],
        )
    accuracy = {name: model.history.history["val_accuracy"] for name, model in models.items()}

    starts = [record.epoch for record in callback.selections]
    last = np.searchsorted(starts, np.arange(epochs["elastic"]), side="right") - 1
    masks = [callback.selections[k].mask for k in last]
    rows = []
    for name, clock in clocks.items():
        seconds, steps = (sum(one[key] for one in clock.epochs) for key in ("seconds", "steps"))
        told = {"training_seconds": seconds, "seconds_per_step": seconds / steps}
        rows.append({"method": called[name], "accuracy": accuracy[name][-1], **told})
    print("\n" + format_table(rows, run.COLUMNS))
    shown = {
        called[name]: (
            np.cumsum([epoch["seconds"] for epoch in clock.epochs]),
            100 * np.array(accuracy[name]),
        )
        for name, clock in clocks.items()
    }
    names = [tensor.name.split(":")[0] for tensor in elastic.tensors]
    axes = {"x": "training time (s)", "y": "test accuracy (%)"}
    lines = plots.lines(shown, **axes, title="Digits of another domain")
    plots.save(lines, settings.out / "accuracy.png")
    plots.save(plots.selection_map(masks, names=names), settings.out / "selection.png")
    result = {"settings": settings, "device": describe_device(), "rows": rows}
    write_json(settings.out / "result.json", to_json(result))
    print(f"Pictures: {settings.out}/accuracy.png, {settings.out}/selection.png")
    return rows


class Said(tf.keras.callbacks.Callback):
    """A line for each epoch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print(f"epoch {epoch + 1}, {self._name}: {logs['val_accuracy']:.1%}", flush=True)


def other_domain(settings: Settings) -> et.data.ImageData:
    """The digits as the network does not know them."""
    return sources.load(
        "digits:shifted",
        channels=1,
        image_size=IMAGE_SIZE,
        batch_size=settings.batch_size,
        seed=settings.seed,
        validation_share=0.9 if settings.quick else 0.0,  # a tenth is left to train on
    )


def adapted_model(settings: Settings, data: et.data.ImageData, epochs: int) -> et.ElasticModel:
    """The pre-trained network, ready to be trained."""
    tf.keras.utils.set_random_seed(settings.seed)
    model = et.zoo.build(
        "digits_resnet", classes=data.classes, input_size=IMAGE_SIZE, weights=WEIGHTS
    )
    steps = epochs * data.steps_per_epoch
    rate = et.optimizers.cosine(1e-3, steps, warm_up=0.1)
    return harness.compiled(model, "adam", rate)


if __name__ == "__main__":
    main()
