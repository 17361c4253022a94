"""Loads, makes the head, trains, measures, prints: what the command `train` does."""

from __future__ import annotations

import functools
import shlex
import shutil
import sys
import time
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.app import runs
from elastic_tf.app.commands import harness, recording
from elastic_tf.app.commands.settings import Train
from elastic_tf.choose.budget.course import RATE, Course
from elastic_tf.choose.budget.prior import prior_profile
from elastic_tf.files import as_utf8, format_table
from elastic_tf.lite.ridge import is_as_good
from elastic_tf.train.engine.checks import warn_if_unlike
from elastic_tf.train.head.solve import begin, solve_between
from elastic_tf.train.recovery import PlanBackup

_BACKUP = "backup"  # in a run's directory until the result is there
_PROFILE = "profile.json"  # likewise, and after it: a run holds all that its pictures need


def run(settings: Train, profile: et.TimingProfile | None, started: float) -> runs.Run:
    """The run of these settings, trained unless it was before; its seconds count from `started`."""
    method, out = et.baselines.get(settings.method), settings.out
    if not method.needs_profile:
        settings.no_budget()
    if settings.memory is not None and profile is None and not method.foretells:
        raise ValueError(
            "`memory` without `profile` is for the method elastic: measuring one trains "
            f"everything. Received: memory={settings.memory!r} for {method.name}. Take elastic, or "
            "a profile and a method that needs no probe, as elastic_weight."
        )
    tf.keras.utils.set_random_seed(settings.seed)
    settings, data = harness.with_images(settings)
    run = runs.create(out, settings)
    if settings.model.endswith(harness.FILE):  # a run holds all that is needed to use it
        shutil.copyfile(settings.model, out / runs.NETWORK)
    for name, instead in (("seconds", "Give `rho` instead"), ("balanced", "Leave it out")):
        if getattr(settings, name) and not data.fits_memory:
            raise ValueError(
                f"`{name}` is for images that fit into a quarter of the memory. Received: "
                f"{data.train_count} images of {settings.input_size} pixels. {instead}."
            )
    for path in data.skipped:
        print(f"Left out, not an image: {as_utf8(path)}")
    if run.result is not None:
        print(f"Finished before, in {out}:\n{format_table([run.result], runs.COLUMNS)}")
        return run
    if settings.seconds is not None:
        run.go_back(0)  # its seconds are over
        row = _within_seconds(settings, data, profile, run, started)
        said = f"On the test images: {row['accuracy']:.1%}."
    elif run.history and not (out / _BACKUP).is_dir():
        raise ValueError(
            f"{out} holds a run that was interrupted after {len(run.history)} epochs and "
            "left no backup. Remove it to start again, or choose another --out."
        )
    else:
        if not run.history:  # it may have had other settings
            shutil.rmtree(out / _BACKUP, ignore_errors=True)
        row = _by_method(settings, data, profile, run)
        table = format_table([row], runs.COLUMNS)
        said = f"{table}\nSolving the head took {row['head_seconds']:.1f} s."
    run.finish(row)
    shutil.rmtree(out / _BACKUP, ignore_errors=True)
    print(f"{said} Written to {out}")
    report = ["-m", "elastic_tf", "report", "--run", str(out)]
    print(f"A page on it: {shlex.join([sys.executable, *report])}")
    return run


def _within_seconds(
    settings: Train,
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
    run: runs.Run,
    started: float,
) -> dict[str, Any]:
    """As `finetune` with arrays, on a run's images and in its directory; the result."""
    assert settings.seconds is not None
    verbose = 0 if settings.quiet else 2
    model = et.ElasticModel.from_model(_network(settings, data))
    optimizer = et.optimizers.by_name(settings.optimizer, RATE)
    model.compile(optimizer, harness.loss(), metrics=["accuracy"], statistics="stored")
    course = Course(
        model,
        _samples(settings, data),
        data.validation,
        seconds=settings.seconds,
        started=started,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        profile=profile,
        verbose=verbose,
        callbacks=[recording.Recorder(run)],
    )
    course.run()
    run.save_weights(model)
    course.profile.save(run.path / _PROFILE)
    head, kept = course.reached or (None, None)
    return {
        "method": "elastic",
        "class_names": data.class_names,
        **model.evaluate(data.test, verbose=verbose, return_dict=True),
        "head_accuracy": head,
        "validation_accuracy": kept,
        "training_seconds": sum(course.seconds.values()),
        "steps": sum(epoch["steps"] for epoch in run.history),
        "epochs": len(run.history),
        "predicted_ratio": course.share,
        "seconds": course.seconds,
    }


def _network(settings: Train, data: et.data.ImageData) -> tf.keras.Model:
    """The pre-trained network with a new head; a warning where one's own takes other values."""
    model = harness.network(settings, data.classes, settings.weights)
    if settings.model.endswith(harness.FILE):  # those of the zoo scale their inputs
        warn_if_unlike(model, next(iter(data.train))[0])
    return model


def _samples(settings: Train, data: et.data.ImageData) -> et.Samples:
    """The training images in memory; each class weighs alike where that is asked for."""
    samples = data.samples()
    if not settings.balanced:
        return samples
    counts = np.bincount(samples.arrays[1].numpy(), minlength=data.classes)
    return samples.weighted(
        {k: samples.count / (data.classes * max(count, 1)) for k, count in enumerate(counts)}
    )


def _by_method(
    settings: Train,
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
    run: runs.Run,
) -> dict[str, Any]:
    """A head, a `fit` of the method or the rest of one, the head again or the best; the result."""
    method = et.baselines.get(settings.method)
    # a file would keep every redraw of a bar
    verbose = 0 if settings.quiet else 1 if sys.stdout.isatty() else 2
    # samples have numbers, so that what lies before the first trained tensor is computed once
    train = _samples(settings, data) if data.fits_memory else data.train
    if run.history:
        _tell(settings, f"Going on after epoch {len(run.history)}, in {run.path}")
        if profile is None and (run.path / _PROFILE).is_file():
            profile = et.TimingProfile.load(run.path / _PROFILE)
    network = _network(settings, data)
    if profile is not None and method.needs_profile:  # before anything is trained
        shape = tuple(network.input_shape[1:])
        profile.check_data(batch_size=settings.batch_size, input_shape=[shape])
    head = et.solve_head(harness.compiled(network, "adam", 1e-3), train)
    if not run.history:
        _tell(settings, f"New head in closed form, {head.accuracy:.1%} right of images left out")
    model = _compiled(settings, method.adapt(network), data.steps_per_epoch)
    batch = tuple(part[: settings.batch_size] for part in next(iter(data.train)))
    if method.needs_profile:
        profile = profile or _profiled(settings, model, batch, method.foretells)
        profile.save(run.path / _PROFILE)
    judged, start = data.validation or data.test, model.get_weights()
    if run.history:
        first = {name: run.history[0][name] for name in ("head_seconds", "head_accuracy")}
    else:
        found = model.evaluate(judged, verbose=0, return_dict=True)
        first = {"head_seconds": head.seconds, "head_accuracy": found["accuracy"]}
        begin(model, head)
    kept = recording.Best(first["head_accuracy"], start)
    names = ("seed", "interval", "probe_size", "rho", "memory")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    task = et.baselines.Task(model=model, profile=profile, probe=data.probe, **given)
    callbacks = [recording.Recorder(run, **first), *method.callbacks(task)]
    if data.validation is not None:
        callbacks.append(kept)
    if settings.patience is not None:
        callbacks.append(
            tf.keras.callbacks.EarlyStopping("val_accuracy", patience=settings.patience)
        )
    if method.can_go_on:
        backup = et.Backup(run.path / _BACKUP, nan="ignore")
        elastic = [one for one in callbacks if isinstance(one, et.ElasticCallback)]
        if elastic:
            elastic[0].backup = backup
        else:
            callbacks.append(PlanBackup(backup))
    with warnings.catch_warnings():  # a run can be interrupted after its last epoch, too
        warnings.filterwarnings("ignore", message=".*nothing is trained")
        options = {"validation_data": judged, "callbacks": callbacks, "verbose": verbose}
        model.fit(train, epochs=settings.epochs, **options)
    seconds = first["head_seconds"]
    reached: dict[str, Any] = {"validation_accuracy": None, "kept_epoch": len(run.history)}
    if data.validation is not None:
        began = time.perf_counter()
        judge = functools.partial(model.evaluate, data.validation, verbose=0, return_dict=True)
        again = solve_between(model, train, head, start, judge)
        seconds += time.perf_counter() - began
        accuracy, epoch, name = _chosen(model, kept, again, data, len(run.history))
        reached = {"validation_accuracy": accuracy, "kept_epoch": epoch}
        before = first["head_accuracy"]
        _tell(settings, f"Validation: head {before:.1%}, now {accuracy:.1%} ({name})")
    run.save_weights(model)
    if data.validation is not None:  # the test images are used once, when the weights are there
        reached.update(model.evaluate(data.test, verbose=verbose, return_dict=True))
    return {
        "method": method.name,
        "class_names": data.class_names,
        **recording.summary(run.history),
        **reached,
        "head_seconds": seconds,
    }


def _compiled(settings: Train, model: tf.keras.Model, steps: int) -> et.ElasticModel:
    """The model with its optimizer; an epoch has so many steps."""
    rate: Any = harness.learning_rate(settings)
    if settings.schedule == "cosine":
        rate = et.optimizers.cosine(rate, settings.epochs * steps, warm_up=settings.warm_up)
    return harness.compiled(model, settings.optimizer, rate)


def _profiled(
    settings: Train, model: et.ElasticModel, batch: Any, foretells: bool
) -> et.TimingProfile:
    """Step times, foretold from a forward pass where these do, or measured."""
    if foretells:
        return prior_profile(model, batch[0])
    _tell(settings, "Profiling this device ...")
    return et.profile_model(model, *batch)


def _tell(settings: Train, text: str) -> None:
    if not settings.quiet:
        print(text)


def _chosen(
    model: et.ElasticModel,
    kept: recording.Best,
    again: tuple[str, dict[str, float]] | None,
    data: et.data.ImageData,
    epochs: int,
) -> tuple[float, int, str]:
    """Leave the model its head solved again, or give it the best weights; what they reach."""
    name, found = again or ("", {"accuracy": -1.0})
    # the best of many epochs is the luckiest one, too
    if is_as_good(float(found["accuracy"]), kept.best, data.validation_count):
        return float(found["accuracy"]), epochs, name
    model.set_weights(kept.best_weights)
    epoch = kept.best_epoch
    return kept.best, epoch, f"epoch {epoch}" if epoch else "the solved head"
