"""Loads, makes the head, profiles, trains, measures, prints: what the command `train` does."""

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
from elastic_tf.app.commands import options
from elastic_tf.app.commands.training import harness, recording, sources
from elastic_tf.choose.budget.course import RATE, Course
from elastic_tf.choose.budget.prior import prior_profile
from elastic_tf.choose.budget.remembered import recalled
from elastic_tf.files import as_utf8, format_table
from elastic_tf.lite.ridge import is_as_good
from elastic_tf.methods import baselines
from elastic_tf.train.engine.checks import warn_if_unlike
from elastic_tf.train.head.solve import begin, solve_between
from elastic_tf.train.recovery import PlanBackup

_BACKUP = "backup"  # in a run's directory until the result is there


def run(settings: Any, profile: et.TimingProfile | None, started: float) -> runs.Run:
    """The run of these settings, trained unless it was before; its seconds count from `started`."""
    method, out = baselines.get(settings.method), settings.out
    if not method.needs_profile:
        options.no_budget(method.name, **settings.budget)
    if settings.memory is not None and profile is None and not method.foretells:
        raise ValueError(
            "`memory` without `profile` is for the method elastic: measuring one trains "
            f"everything. Received: memory={settings.memory!r} for {method.name}. Take elastic, or "
            "a profile and a method that needs no probe, as elastic_weight."
        )
    tf.keras.utils.set_random_seed(settings.seed)
    settings = harness.fitted(settings)
    data = sources.of(settings)
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
        row = _within(settings, data, profile, run, started)
        said = f"On the test images: {row['accuracy']:.1%}."
    elif run.history and not (out / _BACKUP).is_dir():
        raise ValueError(
            f"{out} holds a run that was interrupted after {len(run.history)} epochs and "
            "left no backup. Remove it to start again, or choose another --out."
        )
    else:
        if not run.history:  # it may have had other settings
            shutil.rmtree(out / _BACKUP, ignore_errors=True)
        row = _Training(settings, data, profile, run).result()
        table = format_table([row], runs.COLUMNS)
        said = f"{table}\nSolving the head took {row['head_seconds']:.1f} s."
    run.finish(row)
    shutil.rmtree(out / _BACKUP, ignore_errors=True)
    print(f"{said} Written to {out}")
    report = ["-m", "elastic_tf", "report", "--run", str(out)]
    print(f"A page on it: {shlex.join([sys.executable, *report])}")
    return run


def _within(
    settings: Any,
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
    run: runs.Run,
    started: float,
) -> dict[str, Any]:
    """As `finetune` with arrays, on a run's images and in its directory; the result."""
    verbose = 0 if settings.quiet else 2
    model = et.ElasticModel.from_model(harness.network(settings, data.classes, settings.weights))
    _check_scale(settings, model, data)
    optimizer = et.optimizers.by_name(settings.optimizer, RATE)
    model.compile(optimizer, harness.loss(), metrics=["accuracy"], statistics="stored")
    clock = recording.TrainingClock()
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
        callbacks=[clock, recording.Recorder(run, clock)],
    )
    course.run()
    run.save_weights(model)
    course.profile.save(run.path / "profile.json")  # a run holds all that its pictures need
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


def _samples(settings: Any, data: et.data.ImageData) -> et.Samples:
    """The training images in memory; each class weighs alike where that is asked for."""
    samples = data.samples()
    if not settings.balanced:
        return samples
    counts = np.bincount(samples.arrays[1].numpy(), minlength=data.classes)
    return samples.weighted(
        {k: samples.count / (data.classes * max(count, 1)) for k, count in enumerate(counts)}
    )


def _check_scale(settings: Any, model: Any, data: et.data.ImageData) -> None:
    """Warn where a network of one's own takes other values; those of the zoo scale their inputs."""
    if settings.model.endswith(harness.FILE):
        warn_if_unlike(model, next(iter(data.train))[0])


class _Training:
    """One training, from the backup of an interrupted one if there is one."""

    def __init__(
        self,
        settings: Any,
        data: et.data.ImageData,
        profile: et.TimingProfile | None,
        run: runs.Run,
    ) -> None:
        self._settings, self._data, self._run = settings, data, run
        self._method = baselines.get(settings.method)
        # samples have numbers, so that what lies before the first trained tensor is computed once
        self._train = _samples(settings, data) if data.fits_memory else data.train
        # a file would keep every redraw of a bar
        self._verbose = 0 if settings.quiet else 1 if sys.stdout.isatty() else 2
        self._head_seconds = 0.0
        self._own_profile = run.path / "profile.json"  # a run holds all that its pictures need
        if run.history:
            self._tell(f"Going on after epoch {len(run.history)}, in {run.path}")
            self._head_seconds = run.history[0]["head_seconds"]
            if profile is None and self._own_profile.is_file():
                profile = et.TimingProfile.load(self._own_profile)
        self._profile = profile

    def result(self) -> dict[str, Any]:
        """Train and measure."""
        settings, data, past = self._settings, self._data, self._run.history
        model = self._model()
        batch = tuple(part[: settings.batch_size] for part in next(iter(data.train)))
        if self._method.needs_profile:
            if self._profile is None and self._method.foretells:
                self._profile, _ = recalled(prior_profile(model, batch[0]))
            elif self._profile is None:
                self._tell("Profiling this device ...")
                self._profile = et.profile_model(model, *batch)
            self._profile.save(self._own_profile)
        self._fit(model)
        kept = {} if data.validation is None else self._best(model)
        self._run.save_weights(model)
        if kept:  # the test images are used once, when the weights are there
            kept.update(model.evaluate(data.test, verbose=self._verbose, return_dict=True))
        return {
            "method": self._method.name,
            "class_names": data.class_names,
            **recording.summary(past),
            "validation_accuracy": None,
            "kept_epoch": len(past),
            **kept,
            "head_seconds": self._head_seconds,
        }

    def _tell(self, text: str) -> None:
        if not self._settings.quiet:
            print(text)

    def _model(self) -> et.ElasticModel:
        """What is trained: the pre-trained network with a new head, as the method adapts it."""
        settings, data, profile = self._settings, self._data, self._profile
        model = harness.network(settings, data.classes, settings.weights)
        _check_scale(settings, model, data)
        if profile is not None and self._method.needs_profile:  # before anything is trained
            shape = tuple(model.input_shape[1:])
            profile.check_data(batch_size=settings.batch_size, input_shape=[shape])
        self._head = et.solve_head(harness.compiled(model, "adam", 1e-3), self._train)
        if not self._run.history:
            accuracy = self._head.accuracy
            self._tell(f"New head in closed form, {accuracy:.1%} right of images left out")
            self._head_seconds = self._head.seconds
        rate: Any = settings.rate()
        if settings.schedule == "cosine":
            steps = settings.epochs * data.steps_per_epoch
            rate = et.optimizers.cosine(rate, steps, warm_up=settings.warm_up)
        return harness.compiled(self._method.adapt(model), settings.optimizer, rate)

    def _fit(self, model: et.ElasticModel) -> None:
        """Train; the weights that are best on validation images wait in a file."""
        settings, data, run = self._settings, self._data, self._run
        names = ("seed", "interval", "probe_size", "rho", "memory")
        given = {name: value for name in names if (value := getattr(settings, name)) is not None}
        judged, self._start = data.validation or data.test, model.get_weights()
        if run.history:
            first = run.history[0]["head_accuracy"]
        else:
            first = model.evaluate(judged, verbose=0, return_dict=True)["accuracy"]
            begin(model, self._head)
        self._kept = recording.Best(first, self._start)
        task = baselines.Task(model=model, profile=self._profile, probe=data.probe, **given)
        clock = recording.TrainingClock()
        callbacks: list[Any] = [clock, *self._method.callbacks(task)]
        choosers = [one for one in callbacks if isinstance(one, et.ElasticCallback)]
        head: dict[str, Any] = {"head_seconds": self._head_seconds, "head_accuracy": first}
        callbacks.append(recording.Recorder(run, clock, *choosers, **head))
        if data.validation is not None:
            callbacks.append(self._kept)
        if settings.patience is not None:
            patience = settings.patience
            callbacks.append(tf.keras.callbacks.EarlyStopping("val_accuracy", patience=patience))
        if self._method.can_go_on:
            backup = et.Backup(run.path / _BACKUP, nan="ignore")
            if choosers:
                choosers[0].backup = backup
            else:
                callbacks.append(PlanBackup(backup))
        options = {"validation_data": judged, "callbacks": callbacks, "verbose": self._verbose}
        with warnings.catch_warnings():  # a run can be interrupted after its last epoch, too
            warnings.filterwarnings("ignore", message=".*nothing is trained")
            model.fit(self._train, epochs=settings.epochs, **options)

    def _best(self, model: et.ElasticModel) -> dict[str, Any]:
        """Give the model its head anew, or weights that validation images favour; what is known."""
        kept, validation = self._kept, self._data.validation
        accuracy, epoch = kept.best, kept.best_epoch
        said = f"epoch {epoch}" if epoch else "the solved head"
        started = time.perf_counter()
        judge = functools.partial(model.evaluate, validation, verbose=0, return_dict=True)
        found = solve_between(model, self._train, self._head, self._start, judge)
        self._head_seconds += time.perf_counter() - started
        name, again = (found[0], float(found[1]["accuracy"])) if found else ("", -1.0)
        # the best of many epochs is the luckiest one, too
        if is_as_good(again, accuracy, self._data.validation_count):
            accuracy, epoch, said = again, len(self._run.history), name
        else:
            model.set_weights(kept.best_weights)
        first = self._run.history[0]["head_accuracy"]
        self._tell(f"Validation: head {first:.1%}, now {accuracy:.1%} ({said})")
        return {"validation_accuracy": accuracy, "kept_epoch": epoch}
