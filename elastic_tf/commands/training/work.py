"""Loads, warms the head, profiles, trains, measures, prints: what the command `train` does."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf import arguments, baselines
from elastic_tf.commands import commandline
from elastic_tf.commands.training import harness, history, measurement, recording, sources
from elastic_tf.costs import energy
from elastic_tf.engine import replicas
from elastic_tf.files.atomic import as_utf8
from elastic_tf.files.table import format_table
from elastic_tf.runs import run as runs

_BACKUP = "backup"  # the state after the last finished epoch, until the result is there


def run(settings: Any, profile: et.TimingProfile | None) -> runs.Run:
    """The run of these settings, trained unless it was before; only the chief writes.

    Args:
        settings: of the command `train`.
        profile: that the settings name.

    Raises:
        ValueError: another run, or a broken one, is in its directory.
    """
    method = baselines.get(settings.method)
    if settings.rho is not None and not method.needs_profile:
        raise ValueError(
            "`rho` is for methods that keep to a share of the step time. Received: "
            f"rho={settings.rho} for {settings.method}. Leave it out."
        )
    strategy = strategy_of(settings.strategy)  # before anything else of TensorFlow's
    replicas.from_chief(strategy, lambda: None)  # all workers are there
    tf.keras.utils.set_random_seed(settings.seed)
    data = _loaded(settings, settings.batch_size * replicas.count(strategy))
    run = replicas.from_chief(strategy, lambda: runs.create(settings.out, settings))
    is_chief = replicas.is_chief(strategy)
    say = print if is_chief else _nothing
    for path in data.skipped:
        say(f"Left out, not an image: {as_utf8(path)}")
    if run.result is not None:
        say(f"Finished before, in {settings.out}:\n" + format_table([run.result], runs.COLUMNS))
        return run
    if run.history and not (settings.out / _BACKUP).is_dir():
        raise ValueError(
            f"{settings.out} holds a run that was interrupted after {len(run.history)} epochs and "
            "left no backup. Remove it to start again, or choose another --out."
        )
    row = _trained(settings, strategy, data, profile, run)
    if is_chief:
        run.finish(row)
        shutil.rmtree(settings.out / _BACKUP, ignore_errors=True)
        say(format_table([row], runs.COLUMNS))
        seconds = row["training_seconds"]
        say(f"Training: {recording.said_of(seconds, row['share_beside_steps'] * seconds)}")
        say(f"Head alone before: {row['warm_head_seconds']:.1f} s. Written to {settings.out}")
        say(doubt_of(row["accuracy"], data), end="")
        words = ["--runs", str(settings.out), "--out", str(settings.out / "accuracy.png")]
        say(f"To draw it: {commandline.typed(commandline.command('plot', words))}")
    return run


def _trained(
    settings: Any,
    strategy: tf.distribute.Strategy,
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
    run: runs.Run,
) -> dict[str, Any]:
    """Train, from the backup of an interrupted run if there is one; returns the result."""
    is_chief, method = replicas.is_chief(strategy), baselines.get(settings.method)
    is_quiet = settings.quiet or not is_chief
    tell = _nothing if is_quiet else print
    # a file keeps every redraw of a bar
    verbose = 0 if is_quiet else 1 if sys.stdout.isatty() else 2
    if run.history:
        tell(f"Going on after epoch {len(run.history)}, in {settings.out}")
    own_profile = settings.out / "profile.json"  # a run holds all that its pictures need
    if profile is None and run.history and own_profile.is_file():
        profile = et.TimingProfile.load(own_profile)

    def build(weights: str | None = None) -> tf.keras.Model:
        return et.zoo.build(
            settings.model,
            classes=data.classes,
            input_size=settings.input_size,
            alpha=settings.alpha,
            weights=weights,
            bn_training=settings.bn_training,
        )

    def made(chosen: baselines.Method) -> et.ElasticModel:
        rate = settings.learning_rate
        return harness.compiled(
            chosen.adapt(build()), settings.optimizer, rate, one_hot=data.one_hot
        )

    with strategy.scope():
        model = build(None if settings.weights == "none" else settings.weights)
        if profile is not None and method.needs_profile:  # before anything is trained
            shape = [tuple(model.input_shape[1:])]
            profile.check_data(batch_size=settings.batch_size, input_shape=shape)
        warm_seconds = run.history[0].get("warm_head_seconds", 0.0) if run.history else 0.0
        if settings.warm_head and not run.history:
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
        elastic = harness.compiled(
            method.adapt(model),
            settings.optimizer,
            harness.rate(
                settings.schedule, settings.learning_rate, steps, warm_up=settings.warm_up
            ),
            xla=profile is not None and profile.settings.xla,
            one_hot=data.one_hot,
        )
    own = elastic if replicas.count(strategy) == 1 else made(method)  # on one device
    x, y = next(iter(data.train))
    batch = x[: settings.batch_size], y[: settings.batch_size]
    if method.needs_profile:
        if profile is None:
            tell("Profiling this device ...")
            profile = replicas.from_chief(strategy, lambda: et.profile_model(own, *batch))
        if is_chief:
            profile.save(own_profile)

    task = baselines.Task(
        model=elastic,
        profile=profile,
        probe=data.probe,
        seed=settings.seed,
        interval=settings.interval,
        probe_size=settings.probe_size,
        **({} if settings.rho is None else {"rho": settings.rho}),
    )
    clock = recording.TrainingClock()
    callbacks: list[Any] = [clock, *method.callbacks(task)]
    if is_chief:
        choosers = [one for one in callbacks if isinstance(one, et.ElasticCallback)]
        recorder = recording.Recorder(
            run,
            clock,
            choosers[0] if choosers else None,
            sensor=energy.find_sensor(),
            warm_head_seconds=warm_seconds,
        )
        callbacks.append(recorder)
    if method.can_go_on:
        # kept until the result is there: a run can be interrupted after its last epoch too
        backup = str(settings.out / _BACKUP)
        callbacks.append(tf.keras.callbacks.BackupAndRestore(backup, delete_checkpoint=False))
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
    if not is_chief:
        return {}
    tell("Measuring the step ratio that was achieved ...")
    is_same = method.adapt is baselines.get("full").adapt
    full = own if is_same else made(baselines.get("full"))
    return {
        "method": settings.method,
        **history.summary(run.history),
        **measurement.result(run.history, own, full, batch, lambda: made(method)),
        **tested,
        "validation_accuracy": run.history[-1]["val_accuracy"] if tested else None,
        "warm_head_seconds": warm_seconds,
        "class_names": data.class_names,
    }


def strategy_of(name: str) -> tf.distribute.Strategy:
    """The strategy of that name; has to be made before TensorFlow does anything else.

    Args:
        name: "none", "mirrored" for all GPUs of this machine (or all logical CPU devices, where
            there is no GPU), or "multiworker" for the workers that TF_CONFIG lists.

    Raises:
        ValueError: "multiworker" without TF_CONFIG.
    """
    if name == "none":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if not os.environ.get("TF_CONFIG"):
        raise ValueError(
            "The strategy 'multiworker' needs the environment variable TF_CONFIG. Received: none. "
            """Set it on each worker: {"cluster": {"worker": ["host1:port", "host2:port"]}, """
            """"task": {"type": "worker", "index": 0}}."""
        )
    return tf.distribute.MultiWorkerMirroredStrategy()


def doubt_of(accuracy: float, data: et.data.ImageData) -> str:
    """A line where a model does no better than always naming the most frequent class, or ""."""
    labels = np.concatenate([np.asarray(y) for _, y in data.test])
    counts = np.bincount(labels if labels.ndim == 1 else labels.argmax(axis=-1))
    # in images, for the accuracy comes from Keras in single precision
    if round(accuracy * counts.sum()) > counts.max():
        return ""
    return (
        "It did not learn to tell the classes apart: always naming the most frequent one is right "
        f"for {counts.max() / counts.sum():.1%} of the test images. Try other learning rates, more "
        "epochs, or pre-trained --weights; without weights give --bn-training.\n"
    )


def _loaded(settings: Any, batch_size: int) -> et.data.ImageData:
    """The images of the run."""
    model = arguments.choice("model", settings.model, et.zoo.NAMES)
    return sources.load(
        settings.data,
        channels=et.zoo.ARCHITECTURES[model].channels,
        image_size=settings.input_size,
        batch_size=batch_size,
        seed=settings.seed,
        flip=settings.flip,
        augment=sources.augmentations(settings.augment),
        validation_share=settings.validation,
        on_bad_image="skip" if settings.skip_bad_images else "raise",
    )


def _nothing(*_: Any, **__: Any) -> None:
    """Only the chief prints."""
