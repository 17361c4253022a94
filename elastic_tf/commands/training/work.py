"""Loads, warms the head, profiles, trains, measures, prints: what the command `train` does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import elastic_tf as et
from elastic_tf import baselines
from elastic_tf.commands import commandline
from elastic_tf.commands.training import (
    doubts,
    harness,
    history,
    recording,
    sources,
    step_bench,
    strategies,
)
from elastic_tf.commands.training.run_settings import CHOOSING, Settings
from elastic_tf.costs import energy
from elastic_tf.engine import replicas
from elastic_tf.files.atomic import as_utf8
from elastic_tf.files.table import format_table
from elastic_tf.runs import run as runs


def run(settings: Settings, profile: et.TimingProfile | None) -> runs.Run:
    """The run of these settings, trained unless it was before.

    Args:
        settings: of the run, complete.
        profile: that the settings name.

    Raises:
        ValueError: another run, or a broken one, is in its directory.
    """
    strategy = strategies.make(settings.strategy)  # before anything else of TensorFlow's
    replicas.from_chief(strategy, lambda: None)  # all workers are there
    tf.keras.utils.set_random_seed(settings.seed)
    data = loaded(settings, settings.batch_size * replicas.count(strategy))
    run = replicas.from_chief(strategy, lambda: runs.create(settings.out, settings))
    say = print if replicas.is_chief(strategy) else _nothing
    for path in data.skipped:
        say(f"Left out, not an image: {as_utf8(path)}")
    if run.result is not None:
        say(f"Finished before, in {settings.out}:\n" + format_table([run.result], runs.COLUMNS))
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
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
    run: runs.Run,
    say: Callable[[str], None],
) -> runs.Run:
    """Train, from the backup of an interrupted run if there is one; only the chief writes."""
    is_chief = replicas.is_chief(strategy)
    tell = _nothing if settings.quiet else say
    verbose = harness.verbosity(quiet=settings.quiet or not is_chief)
    method = baselines.get(settings.method)
    backup = backup_of(settings)
    is_continued = bool(run.history)
    if is_continued:
        tell(f"Going on after epoch {len(run.history)}, in {settings.out}")
    with strategy.scope():
        model = built(settings, data, settings.weights)
        warm_seconds = run.history[0].get("warm_head_seconds", 0.0) if is_continued else 0.0
        if settings.warm_head and not is_continued:
            tell(f"Training the new head alone, epochs: {settings.warm_head}")
            warm_seconds = harness.warm_head(
                model,
                data.train,
                epochs=settings.warm_head,
                learning_rate=settings.warm_head_rate,
                one_hot=data.one_hot,
                verbose=verbose,
            )
        steps = settings.epochs * data.steps_per_epoch
        rate = harness.rate(
            settings.schedule,
            settings.learning_rate,
            steps,
            warm_up=round(settings.warm_up * steps),
        )
        xla = profile is not None and profile.settings.xla
        elastic = harness.compiled(
            method.adapt(model), settings.optimizer, rate, xla=xla, one_hot=data.one_hot
        )
    bench = step_bench.Bench(settings, strategy, data, elastic, built)
    if method.needs_profile:
        kept = settings.out / "profile.json"
        if profile is None and is_continued and kept.is_file():
            profile = et.TimingProfile.load(kept)
        profile = replicas.from_chief(strategy, lambda: profile or bench.profile(say))
        shape = [tuple(elastic.input_shape[1:])]
        profile.check(elastic, batch_size=settings.batch_size, input_shape=shape)
        if is_chief:
            profile.save(kept)  # a run holds all that its pictures need

    clock = recording.TrainingClock()
    chosen = method.callbacks(task(settings, elastic, data, profile))
    callbacks: list[Any] = [clock, *chosen]
    if is_chief:
        choosers = [one for one in chosen if isinstance(one, et.ElasticCallback)]
        recorder = recording.Recorder(
            run,
            clock,
            choosers[0] if choosers else None,
            cost=bench.cost,
            sensor=energy.find_sensor(),
            first={"warm_head_seconds": warm_seconds},
        )
        callbacks.append(recorder)
    # kept until the result is there: a run can be interrupted after its last epoch too
    callbacks.append(tf.keras.callbacks.BackupAndRestore(str(backup), delete_checkpoint=False))
    elastic.fit(
        data.train,
        epochs=settings.epochs,
        validation_data=data.validation or data.test,
        verbose=verbose,
        callbacks=callbacks,
    )
    tested: dict[str, Any] = {}
    if data.validation is not None:  # the test images are used once, by all workers
        tested = elastic.evaluate(data.test, verbose=verbose, return_dict=True)
    with tempfile.TemporaryDirectory() as elsewhere:
        # all workers: reading statistics that each replica keeps for itself takes all of them
        folder = settings.out if is_chief else Path(elsewhere)
        elastic.save_weights(folder / "weights.h5")
        if getattr(elastic, "removed", None):  # the weights are those of a smaller network
            elastic.network.save(folder / "network.keras")
    if is_chief:
        tell("Measuring the step ratio that was achieved ...")
        row = {
            "method": settings.method,
            **bench.result(run.history, history.targets_of(settings.targets)),
            **tested,
            "validation_accuracy": run.history[-1]["val_accuracy"] if tested else None,
            "warm_head_seconds": warm_seconds,
            "class_names": data.class_names,
        }
        run.finish(row)
        shutil.rmtree(backup, ignore_errors=True)
        say(format_table([row], runs.COLUMNS))
        seconds = row["training_seconds"]
        say(f"Training: {recording.said_of(seconds, row['share_beside_steps'] * seconds)}")
        say(f"Head alone before: {warm_seconds:.1f} s. Written to {settings.out}")
        if not settings.quiet:
            trained = run.history[-1].get("accuracy", 0.0)
            has_statistics = settings.weights != "none" or settings.bn_training
            for sentence in doubts.of_result(
                row["accuracy"], data, trained=trained, has_statistics=has_statistics
            ):
                say(sentence)
        words = ["--runs", str(settings.out), "--out", str(settings.out / "accuracy.png")]
        say(f"To draw it: {commandline.typed(commandline.command('plot', words))}")
    return run


def loaded(settings: Settings, batch_size: int) -> et.data.ImageData:
    """The images of the run."""
    return sources.load(
        settings.data,
        channels=et.zoo.ARCHITECTURES[settings.model].channels,
        image_size=settings.input_size,
        batch_size=batch_size,
        seed=settings.seed,
        flip=settings.flip,
        augment=sources.augmentations(settings.augment),
        validation_share=settings.validation,
        on_bad_image="skip" if settings.skip_bad_images else "raise",
    )


def backup_of(settings: Settings) -> Path:
    """Where the state after the last finished epoch is kept until the run ends."""
    return settings.out / "backup"


def built(settings: Settings, data: et.data.ImageData, weights: str) -> tf.keras.Model:
    """The model of the run, as it is before the method changes it."""
    return et.zoo.build(
        settings.model,
        classes=data.classes,
        input_size=settings.input_size,
        alpha=settings.alpha,
        weights=None if weights == "none" else weights,
        bn_training=settings.bn_training,
    )


def task(
    settings: Settings,
    model: et.ElasticModel,
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
) -> baselines.Task:
    """What the method's callbacks are made from."""
    given = {name: getattr(settings, name) for name in CHOOSING}
    return baselines.Task(
        model=model,
        profile=profile,
        probe=data.probe,
        epochs=settings.epochs,
        seed=settings.seed,
        **{name: value for name, value in given.items() if value is not None},
    )


def _nothing(text: str) -> None:
    """Only the chief prints."""
