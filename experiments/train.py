"""Adapt a pre-trained model to a folder of images: one run, one directory, one table.

Example: python experiments/train.py --method elastic --model mobilenet --alpha 0.75
--weights mobilenet.h5 --data birds --rho 0.5 --epochs 6 --batch-size 4 --optimizer adam
--learning-rate 3e-5 --warm-head 2 --profile mobilenet.json --out runs/birds
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import harness
import numpy as np
import strategies
import tensorflow as tf

from elastic_tf import commandline, energy, replicas, runs, runtime, tfds_data
from elastic_tf.commandline import option, parse
from elastic_tf.selection import check_rho

METHODS = ("elastic", "full")
TFDS = "tfds:"  # before the name of one of TensorFlow Datasets


@dataclasses.dataclass(frozen=True)
class Settings:
    """One run."""

    data: Path = option(help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg, or tfds:NAME")
    out: Path = option(help="directory of the run")
    method: str = option("elastic", help="how to choose what to train", choices=METHODS)
    model: str = option("mobilenet", help="model of the zoo", choices=et.zoo.NAMES)
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    weights: str = option("imagenet", help="'imagenet', 'none', or a file of weights")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step of each replica")
    epochs: int = option(12, help="passes over the training images")
    optimizer: str = option("sgdw", help="optimizer", choices=et.optimizers.NAMES)
    learning_rate: float = option(1e-4, help="learning rate at the start")
    schedule: str = option("cosine", help="of the learning rate", choices=("cosine", "constant"))
    rho: float = option(0.5, help="allowed step time / full step time (elastic)")
    interval: int = option(3, help="epochs between two selections (elastic)")
    probe_size: int = option(64, help="images on which importance is evaluated (elastic)")
    profile: Optional[Path] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="timing profile; measured first if left out"
    )
    warm_head: int = option(0, help="epochs that train the new head alone first")
    warm_head_rate: float = option(1e-3, help="learning rate of Adam meanwhile")
    flip: bool = option(False, help="flip training images at random")
    bn_training: bool = option(False, help="let batch normalisation use the batch's statistics")
    skip_bad_images: bool = option(False, help="train on the rest where a file is no image")
    strategy: str = option(
        "none",
        help="where to train: here, on all devices, or on all of TF_CONFIG's workers",
        choices=strategies.NAMES,
    )
    seed: int = option(0, help="of weights, order and draws")
    quiet: bool = option(False, help="show no progress bar")


def main(arguments: Sequence[str] | None = None) -> runs.Run:
    """Load, warm the head, profile, train, measure, print."""
    settings = parse(Settings, __doc__ or "", arguments)
    check_rho(settings.rho)
    profile = None if settings.profile is None else et.TimingProfile.load(settings.profile)
    if profile is not None and __name__ == "__main__":
        runtime.restart_under(profile.settings, sys.argv)
    strategy = strategies.make(settings.strategy)  # before anything else of TensorFlow's
    replicas.from_chief(strategy, lambda: None)  # all workers are there
    tf.keras.utils.set_random_seed(settings.seed)
    data = loaded(settings, settings.batch_size * replicas.count(strategy))
    run = replicas.from_chief(strategy, lambda: runs.create(settings.out, settings))
    say = print if replicas.is_chief(strategy) else _nothing
    for path in data.skipped:
        say(f"Left out, not an image: {path}")
    if run.result is not None:
        say(f"Finished before, in {settings.out}:\n" + runs.format_table([run.result]))
        return run
    if run.history and not backup_of(settings).is_dir():
        raise ValueError(
            f"{settings.out} holds a run that was interrupted after {len(run.history)} epochs and "
            "left no backup. Remove it to start again, or choose another --out."
        )
    return trained(settings, strategy, data, profile, run, say)


def trained(
    settings: Settings,
    strategy: tf.distribute.Strategy,
    data: et.datasets.ImageData,
    profile: et.TimingProfile | None,
    run: runs.Run,
    say: Callable[[str], None],
) -> runs.Run:
    """Train, from the backup of an interrupted run if there is one; only the chief writes."""
    verbose = 0 if settings.quiet or not replicas.is_chief(strategy) else "auto"
    backup = backup_of(settings)
    is_continued = bool(run.history)
    steps = settings.epochs * data.steps_per_epoch
    with strategy.scope():
        model = built(settings, data, settings.weights)
        warm_seconds = harness.warm_head(
            model,
            data.train,
            epochs=0 if is_continued else settings.warm_head,
            learning_rate=settings.warm_head_rate,
            verbose=verbose,
        )
        rate = harness.rate(settings.schedule, settings.learning_rate, steps)
        xla = profile is not None and profile.settings.xla
        elastic = harness.compiled(model, settings.optimizer, rate, xla=xla)
    bench = Bench(settings, strategy, data, elastic)
    callback = None
    if settings.method == "elastic":
        kept = settings.out / "profile.json"
        if profile is None and is_continued and kept.is_file():
            profile = et.TimingProfile.load(kept)
        profile = replicas.from_chief(strategy, lambda: profile or bench.profile(say))
        callback = chooser(settings, elastic, data, profile)

    clock = harness.TrainingClock()
    callbacks: list[Any] = [clock, *([callback] if callback else [])]
    if replicas.is_chief(strategy):
        callbacks.append(harness.Recorder(run, clock, callback, sensor=energy.find_sensor()))
    callbacks.append(tf.keras.callbacks.BackupAndRestore(str(backup)))
    elastic.fit(
        data.train,
        epochs=settings.epochs,
        validation_data=data.validation or data.test,
        verbose=verbose,
        callbacks=callbacks,
    )
    tested = {}
    if data.validation is not None:  # the test images are used once, by all workers
        tested = elastic.evaluate(data.test, verbose=verbose, return_dict=True)
    with tempfile.TemporaryDirectory() as elsewhere:
        # all workers: reading statistics that each replica keeps for itself takes all of them
        folder = settings.out if replicas.is_chief(strategy) else Path(elsewhere)
        elastic.save_weights(folder / "weights.h5")
    if replicas.is_chief(strategy):
        chosen = run.selections
        masks = [elastic.mask]
        if callback:
            masks = trained_masks(
                [selection["epoch"] for selection in chosen],
                [selection["mask"] for selection in chosen],
                settings.epochs,
            )
        row = {
            **harness.row(settings.method, run.history, clock, bench.achieved_ratio(masks)),
            "training_seconds": sum(epoch["seconds"] for epoch in run.history),
            **({"accuracy": tested["accuracy"]} if tested else {}),
        }
        details = {"warm_head_seconds": warm_seconds, "epochs": len(run.history)}
        run.finish({**row, **details, "class_names": data.class_names})
        shutil.rmtree(backup, ignore_errors=True)
        say(runs.format_table([row]))
        say(f"Head alone before: {warm_seconds:.1f} s. Written to {settings.out}")
    return run


def loaded(settings: Settings, batch_size: int) -> et.datasets.ImageData:
    """The images of the run."""
    source = str(settings.data)
    options: dict[str, Any] = {
        "image_size": settings.input_size,
        "batch_size": batch_size,
        "seed": settings.seed,
        "flip": settings.flip,
    }
    if source.startswith(TFDS):
        return tfds_data.tfds_images(source[len(TFDS) :], **options)
    on_bad_image = "skip" if settings.skip_bad_images else "raise"
    return et.datasets.image_folder(source, **options, on_bad_image=on_bad_image)


def backup_of(settings: Settings) -> Path:
    """Where the state after the last finished epoch is kept until the run ends."""
    return settings.out / "backup"


def built(settings: Settings, data: et.datasets.ImageData, weights: str) -> tf.keras.Model:
    """The model of the run."""
    return et.zoo.build(
        settings.model,
        classes=data.classes,
        input_size=settings.input_size,
        alpha=settings.alpha,
        weights=None if weights == "none" else weights,
        bn_training=settings.bn_training,
    )


class Bench:
    """Measures steps on one device; with several replicas on a model apart, of equal layers.

    Its batches are those of one replica.
    """

    def __init__(
        self,
        settings: Settings,
        strategy: tf.distribute.Strategy,
        data: et.datasets.ImageData,
        model: et.ElasticModel,
    ) -> None:
        self._settings = settings
        self._data = data
        self._model = model if replicas.count(strategy) == 1 else None

    def profile(self, say: Callable[[str], None]) -> et.TimingProfile:
        """A profile made now, kept in the run's directory."""
        say("Profiling this device ...")
        profile = self._alone(lambda model, batch: et.profile_model(model, *batch))
        profile.save(self._settings.out / "profile.json")
        return profile

    def achieved_ratio(self, masks: list[np.ndarray]) -> float:
        """Mean step time under the masks / full step time."""
        return self._alone(lambda model, batch: harness.achieved_ratio(model, batch, masks))

    def _alone(self, measure: Callable[[et.ElasticModel, Any], Any]) -> Any:
        if self._model is None:
            model = built(self._settings, self._data, "none")
            rate = self._settings.learning_rate
            self._model = harness.compiled(model, self._settings.optimizer, rate)
        size = self._settings.batch_size
        return measure(self._model, tuple(part[:size] for part in next(iter(self._data.train))))


def chooser(
    settings: Settings,
    model: et.ElasticModel,
    data: et.datasets.ImageData,
    profile: et.TimingProfile,
) -> et.ElasticCallback:
    """The elastic callback."""
    profile.check(model, batch_size=settings.batch_size, input_shape=[tuple(model.input_shape[1:])])
    return et.ElasticCallback(
        profile,
        rho=settings.rho,
        interval=settings.interval,
        probe=data.probe,
        probe_size=settings.probe_size,
        required=et.zoo.head_tensors(model),
        seed=settings.seed,
    )


def trained_masks(
    starts: Sequence[int], masks: Sequence[np.ndarray], epochs: int
) -> list[np.ndarray]:
    """The mask at the end of each epoch, from those selected and the epochs of their selection."""
    last = np.searchsorted(starts, np.arange(epochs), side="right") - 1
    return [masks[index] for index in last]


def _nothing(text: str) -> None:
    """Only the chief prints."""


if __name__ == "__main__":
    commandline.run(main)
