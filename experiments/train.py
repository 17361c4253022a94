"""Adapt a pre-trained model to a folder of images: one run, one directory, one table.

Example: python experiments/train.py --method elastic --model mobilenet --alpha 0.75
--weights mobilenet.h5 --data birds --rho 0.5 --epochs 6 --batch-size 4 --optimizer adam
--learning-rate 3e-5 --warm-head 2 --profile mobilenet.json --out runs/birds
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import harness
import numpy as np
import tensorflow as tf

from elastic_tf import runs
from elastic_tf.commandline import option, parse
from elastic_tf.selection import check_rho

METHODS = ("elastic", "full")


@dataclasses.dataclass(frozen=True)
class Settings:
    """One run."""

    data: Path = option(help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg")
    out: Path = option(help="directory of the run")
    method: str = option("elastic", help="how to choose what to train", choices=METHODS)
    model: str = option("mobilenet", help="model of the zoo", choices=et.zoo.NAMES)
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    weights: str = option("imagenet", help="'imagenet', 'none', or a file of weights")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step")
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
    seed: int = option(0, help="of weights, order and draws")
    quiet: bool = option(False, help="show no progress bar")


def main(arguments: Sequence[str] | None = None) -> runs.Run:
    """Load, warm the head, profile, train, measure, print."""
    settings = parse(Settings, __doc__ or "", arguments)
    tf.keras.utils.set_random_seed(settings.seed)
    data = et.datasets.image_folder(
        settings.data,
        image_size=settings.input_size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        flip=settings.flip,
        on_bad_image="skip" if settings.skip_bad_images else "raise",
    )
    for path in data.skipped:
        print(f"Left out, not an image: {path}")
    model = et.zoo.build(
        settings.model,
        classes=data.classes,
        input_size=settings.input_size,
        alpha=settings.alpha,
        weights=None if settings.weights == "none" else settings.weights,
        bn_training=settings.bn_training,
    )
    profile = None if settings.profile is None else et.TimingProfile.load(settings.profile)
    check_rho(settings.rho)
    run = runs.create(settings.out, settings)
    if run.result is not None:
        print(f"Finished before, in {settings.out}:\n" + runs.format_table([run.result]))
        return run
    if run.history:
        raise SystemExit(
            f"{settings.out} holds a run that was interrupted after {len(run.history)} epochs. "
            "Remove it to start again, or choose another --out."
        )
    verbose = 0 if settings.quiet else "auto"
    warm_seconds = harness.warm_head(
        model,
        data.train,
        epochs=settings.warm_head,
        learning_rate=settings.warm_head_rate,
        verbose=verbose,
    )
    steps = settings.epochs * data.steps_per_epoch
    elastic = harness.compiled(
        model,
        settings.optimizer,
        harness.rate(settings.schedule, settings.learning_rate, steps),
    )
    batch = next(iter(data.train))
    callback = None
    if settings.method == "elastic":
        callback = chooser(settings, elastic, data, profile or measured(settings, elastic, batch))

    clock = harness.TrainingClock()
    chosen = [callback] if callback else []
    history = elastic.fit(
        data.train,
        epochs=settings.epochs,
        validation_data=data.test,
        verbose=verbose,
        callbacks=[clock, *chosen, harness.Recorder(run, clock, callback)],
    )
    masks = trained_masks(callback, settings.epochs) if callback else [elastic.mask]
    row = harness.row(
        settings.method, run.history, clock, harness.achieved_ratio(elastic, batch, masks)
    )
    run.finish(
        {
            **row,
            "warm_head_seconds": warm_seconds,
            "epochs": len(history.epoch),
            "class_names": data.class_names,
        }
    )
    elastic.save_weights(settings.out / "weights.h5")
    print(runs.format_table([row]))
    print(f"Head alone before: {warm_seconds:.1f} s. Written to {settings.out}")
    return run


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


def measured(settings: Settings, model: et.ElasticModel, batch: Any) -> et.TimingProfile:
    """A profile made now, kept in the run's directory."""
    print("Profiling this device ...", flush=True)
    profile = et.profile_model(model, *batch)
    profile.save(settings.out / "profile.json")
    return profile


def trained_masks(callback: et.ElasticCallback, epochs: int) -> list[np.ndarray]:
    """The mask of each epoch."""
    starts = [record.epoch for record in callback.selections]
    return [
        callback.selections[int(np.searchsorted(starts, epoch, side="right")) - 1].mask
        for epoch in range(epochs)
    ]


if __name__ == "__main__":
    main()
