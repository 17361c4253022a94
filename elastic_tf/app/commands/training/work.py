"""Loads, makes the head, profiles, trains, measures, prints: what the command `train` does."""

from __future__ import annotations

import functools
import shlex
import shutil
import sys
import time
from typing import Any

import tensorflow as tf

import elastic_tf as et
from elastic_tf.app import runs
from elastic_tf.app.commands import options
from elastic_tf.app.commands.training import harness, recording, sources
from elastic_tf.choose.budget.course import RATE, Course
from elastic_tf.choose.budget.prior import prior_profile
from elastic_tf.choose.budget.remembered import recalled
from elastic_tf.files.atomic import as_utf8
from elastic_tf.files.table import format_table
from elastic_tf.lite.ridge import is_as_good
from elastic_tf.methods import baselines
from elastic_tf.train.engine.checks import warn_if_unlike
from elastic_tf.train.head.solve import begin, solve_between

# In a run's directory until the result is there: the state after the last finished epoch, and the
# weights that were best on validation images.
_BACKUP, _BEST = "backup", "best.weights.h5"


def run(settings: Any, profile: et.TimingProfile | None, started: float) -> runs.Run:
    """The run of these settings, trained unless it was before; its seconds count from `started`."""
    method, out = baselines.get(settings.method), settings.out
    if not method.needs_profile:
        options.no_budget(method.name, **settings.budget)
    if settings.memory is not None and profile is None and not method.foretells:
        raise ValueError(
            f"`memory` needs `profile` with {method.name}: measuring one trains everything. "
            f"Received: memory={settings.memory!r} alone. Measure it before: elastic-tf profile."
        )
    tf.keras.utils.set_random_seed(settings.seed)
    settings = harness.fitted(settings)
    data = sources.of(settings)
    run = runs.create(out, settings)
    if settings.model.endswith(harness.FILE):  # a run holds all that is needed to use it
        shutil.copyfile(settings.model, out / runs.NETWORK)
    for path in data.skipped:
        print(f"Left out, not an image: {as_utf8(path)}")
    if run.result is not None:
        print(f"Finished before, in {out}:\n{format_table([run.result], runs.COLUMNS)}")
        return run
    if settings.seconds is not None:
        run.restart()  # its seconds are over
        row = _within(settings, data, profile, run, started)
        said = f"On the test images: {row['accuracy']:.1%}."
    elif run.history and not (out / _BACKUP).is_dir():
        raise ValueError(
            f"{out} holds a run that was interrupted after {len(run.history)} epochs and "
            "left no backup. Remove it to start again, or choose another --out."
        )
    else:
        row = _Training(settings, data, profile, run).result()
        table = format_table([row], runs.COLUMNS)
        said = f"{table}\nSolving the head took {row['head_seconds']:.1f} s."
    run.finish(row)
    shutil.rmtree(out / _BACKUP, ignore_errors=True)
    (out / _BEST).unlink(missing_ok=True)
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
    if not data.fits_memory:
        raise ValueError(
            "`seconds` is for images that fit into a quarter of the memory. Received: "
            f"{data.train_count} images of {settings.input_size} pixels. Give `rho` instead."
        )
    verbose = 0 if settings.quiet else 2
    model = et.ElasticModel.from_model(harness.network(settings, data.classes, settings.weights))
    _check_scale(settings, model, data)
    optimizer = et.optimizers.by_name(settings.optimizer, RATE)
    model.compile(optimizer, harness.loss(), metrics=["accuracy"], statistics="stored")
    clock = recording.TrainingClock()
    course = Course(
        model,
        data.samples(),
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
    model.save_weights(run.path / "model.weights.h5")
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
        self._train = data.samples() if data.fits_memory else data.train
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
        model.save_weights(self._run.path / "model.weights.h5")
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
        judged, first = data.validation or data.test, 0.0
        if not run.history:
            first = model.evaluate(judged, verbose=0, return_dict=True)["accuracy"]
        best, self._start = run.path / _BEST, model.get_weights()
        keeps_best = data.validation is not None
        if keeps_best and not run.history:
            et.optimizers.build(model.optimizer, model.trainable_variables)  # saved, too
            model.save_weights(best)
        if not run.history:
            begin(model, self._head)
        task = baselines.Task(model=model, profile=self._profile, probe=data.probe, **given)
        clock = recording.TrainingClock()
        callbacks: list[Any] = [clock, *self._method.callbacks(task)]
        choosers = [one for one in callbacks if isinstance(one, et.ElasticCallback)]
        head: dict[str, Any] = {"head_seconds": self._head_seconds, "head_accuracy": first}
        callbacks.append(recording.Recorder(run, clock, *choosers, **head))
        if keeps_best:
            callbacks.append(
                tf.keras.callbacks.ModelCheckpoint(
                    str(best),
                    monitor="val_accuracy",
                    mode="max",
                    save_best_only=True,
                    save_weights_only=True,
                    initial_value_threshold=max(self._accuracies() or [first]),
                )
            )
        if self._method.can_go_on:
            # kept until the result is there: a run can be interrupted after its last epoch too
            backup = str(run.path / _BACKUP)
            callbacks.append(tf.keras.callbacks.BackupAndRestore(backup, delete_checkpoint=False))
        options = {"validation_data": judged, "callbacks": callbacks, "verbose": self._verbose}
        model.fit(self._train, epochs=settings.epochs, **options)

    def _accuracies(self) -> list[float]:
        """On the images that are judged by: of the head, and after each epoch."""
        history = self._run.history
        first = [history[0]["head_accuracy"]] if history else []
        return first + [epoch["val_accuracy"] for epoch in history]

    def _best(self, model: et.ElasticModel) -> dict[str, Any]:
        """Give the model its head anew, or weights that validation images favour; what is known."""
        known, count = self._accuracies(), len(self._run.history)
        accuracy, epoch = known[-1], count
        best = self._run.path / _BEST
        if best.exists():
            accuracy = max(known)
            epoch = known.index(accuracy)
            said = f"epoch {epoch}" if epoch else "the solved head"
            started, validation = time.perf_counter(), self._data.validation
            judge = functools.partial(model.evaluate, validation, verbose=0, return_dict=True)
            found = solve_between(model, self._train, self._head, self._start, judge)
            self._head_seconds += time.perf_counter() - started
            name, again = (found[0], float(found[1]["accuracy"])) if found else ("", -1.0)
            # the best of many epochs is the luckiest one, too
            if is_as_good(again, accuracy, self._data.validation_count):
                accuracy, epoch, said = again, count, name
            else:
                model.load_weights(best)
            self._tell(f"Validation: head {known[0]:.1%}, now {accuracy:.1%} ({said})")
        return {"validation_accuracy": accuracy, "kept_epoch": epoch}
