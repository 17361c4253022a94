"""Loads, makes the head, profiles, trains, measures, prints: what the command `train` does."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import tensorflow as tf

import elastic_tf as et
from elastic_tf import baselines
from elastic_tf.commands import options
from elastic_tf.commands.commandline import command, typed
from elastic_tf.commands.training import harness, measurement, recording, sources
from elastic_tf.files.atomic import as_utf8
from elastic_tf.files.table import format_table
from elastic_tf.memory import energy
from elastic_tf.runs import run as runs

_BACKUP = "backup"  # the state after the last finished epoch, until the result is there


def run(settings: Any, profile: et.TimingProfile | None) -> runs.Run:
    """The run of these settings, trained unless it was before.

    Raises:
        ValueError: another run, or a broken one, is in its directory.
    """
    method = baselines.get(settings.method)
    if not method.needs_profile:
        options.no_budget(method.name, rho=settings.rho, memory=settings.memory)
    tf.keras.utils.set_random_seed(settings.seed)
    data = loaded(settings)
    run = runs.create(settings.out, settings)
    for path in data.skipped:
        print(f"Left out, not an image: {as_utf8(path)}")
    if run.result is not None:
        table = format_table([run.result], runs.COLUMNS)
        print(f"Finished before, in {settings.out}:\n{table}")
        return run
    if run.history and not (settings.out / _BACKUP).is_dir():
        raise ValueError(
            f"{settings.out} holds a run that was interrupted after {len(run.history)} epochs and "
            "left no backup. Remove it to start again, or choose another --out."
        )
    row = Training(settings, data, profile, run).result()
    run.finish(row)
    shutil.rmtree(settings.out / _BACKUP, ignore_errors=True)
    (settings.out / recording.BEST).unlink(missing_ok=True)
    seconds = row["training_seconds"]
    words = ["--runs", str(settings.out), "--out", str(settings.out / "accuracy.png")]
    print(format_table([row], runs.COLUMNS))
    print(f"Training: {recording.said_of(seconds, row['share_beside_steps'] * seconds)}")
    print(f"Head alone: {row['head_seconds']:.1f} s. Written to {settings.out}")
    print(f"To draw it: {typed(command('plot', words))}")
    return run


class Training:
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
        self._cached = data.fits_memory
        self._train = data.samples() if self._cached else data.train
        # a file keeps every redraw of a bar
        self._verbose = 0 if settings.quiet else 1 if sys.stdout.isatty() else 2
        self._head_seconds = 0.0
        self._rate = settings.rate()
        self._own_profile = run.path / "profile.json"  # a run holds all that its pictures need
        if run.history:
            self._tell(f"Going on after epoch {len(run.history)}, in {run.path}")
            self._head_seconds = run.history[0].get("head_seconds", 0.0)
            if profile is None and self._own_profile.is_file():
                profile = et.TimingProfile.load(self._own_profile)
        self._profile = profile

    def result(self) -> dict[str, Any]:
        """Train and measure."""
        model = self._model()
        batch = tuple(part[: self._settings.batch_size] for part in next(iter(self._data.train)))
        if self._method.needs_profile:
            if self._profile is None:
                self._tell("Profiling this device ...")
                self._profile = et.profile_model(model, *batch, modes=self._method.modes)
            self._profile.save(self._own_profile)
        tested, best = self._fit(model)
        self._save(model)
        limited = self._settings.memory is not None  # full steps would not keep to it
        if not limited:
            self._tell("Measuring the step ratio that was achieved ...")
        full = baselines.get("full")
        reference = model if self._method.adapt is full.adapt else self._fresh(full)
        past = self._run.history
        judged = best.accuracy if best else past[-1]["val_accuracy"]
        return {
            "method": self._method.name,
            **measurement.summary(past),
            **measurement.result(
                past,
                model,
                reference,
                batch,
                lambda: self._fresh(self._method),
                cached=self._cached,
                timed=not limited,
            ),
            **tested,
            "validation_accuracy": judged if tested else None,
            "kept_epoch": best.epoch if best and not best.is_again else len(past),
            "head_seconds": self._head_seconds,
            "class_names": self._data.class_names,
        }

    def _tell(self, text: str) -> None:
        if not self._settings.quiet:
            print(text)

    def _model(self) -> et.ElasticModel:
        """What is trained: the pre-trained network with a new head, as the method adapts it."""
        settings, data, profile = self._settings, self._data, self._profile
        model = self._network(None if settings.weights == "none" else settings.weights)
        if profile is not None and self._method.needs_profile:  # before anything is trained
            shape = tuple(model.input_shape[1:])
            profile.check_data(batch_size=settings.batch_size, input_shape=[shape])
        if not self._run.history:
            self._head_seconds = self._make_head(model)
        steps = settings.epochs * data.steps_per_epoch
        rate = harness.rate(settings.schedule, self._rate, steps, warm_up=settings.warm_up)
        return harness.compiled(self._method.adapt(model), settings.optimizer, rate)

    def _make_head(self, model: tf.keras.Model) -> float:
        """Give the network its new head; the seconds that it took."""
        if self._settings.head == "none":
            return 0.0
        found = et.solve_head(harness.compiled(model, "adam", 1e-3), self._train)
        self._tell(f"New head in closed form, {found.accuracy:.1%} right of images left out")
        return found.seconds

    def _network(self, weights: str | None = None) -> tf.keras.Model:
        names = ("input_size", "alpha", "bn_training")
        options = {name: getattr(self._settings, name) for name in names}
        classes = self._data.classes
        return et.zoo.build(self._settings.model, classes=classes, weights=weights, **options)

    def _fresh(self, method: baselines.Method) -> et.ElasticModel:
        """What the method trains, with random weights."""
        network, settings = method.adapt(self._network()), self._settings
        return harness.compiled(network, settings.optimizer, self._rate)

    def _fit(self, model: et.ElasticModel) -> tuple[dict[str, Any], recording.BestWeights | None]:
        """Train, keep what is best on validation images, and evaluate that on test images."""
        settings, data = self._settings, self._data
        names = ("seed", "interval", "probe_size", "rho", "memory")
        given = {name: getattr(settings, name) for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        task = baselines.Task(model=model, profile=self._profile, probe=data.probe, **given)
        shown = {"validation_data": data.validation or data.test, "verbose": self._verbose}
        before = None
        if not self._run.history:
            found = model.evaluate(shown["validation_data"], verbose=0, return_dict=True)
            before = found["accuracy"]
        clock = recording.TrainingClock()
        callbacks: list[Any] = [clock, *self._method.callbacks(task)]
        choosers = [one for one in callbacks if isinstance(one, et.ElasticCallback)]
        callbacks.append(
            recording.Recorder(
                self._run,
                clock,
                *choosers,
                sensor=energy.find_sensor(),
                head_seconds=self._head_seconds,
                head_accuracy=before,
            )
        )
        best = None
        if data.validation is not None and not hasattr(model, "removed"):  # of one network

            def again() -> float:
                self._head_seconds += et.solve_head(model, self._train).seconds
                return float(
                    model.evaluate(data.validation, verbose=0, return_dict=True)["accuracy"]
                )

            solves = settings.head == "solve"
            best = recording.BestWeights(self._run, before, again if solves else None)
            callbacks.append(best)
        if self._method.can_go_on:
            # kept until the result is there: a run can be interrupted after its last epoch too
            backup = str(self._run.path / _BACKUP)
            callbacks.append(tf.keras.callbacks.BackupAndRestore(backup, delete_checkpoint=False))
        model.fit(self._train, epochs=settings.epochs, callbacks=callbacks, **shown)
        if best is not None:
            first = self._run.history[0]["head_accuracy"]
            kept = f"epoch {best.epoch}" if best.epoch else "the solved head"
            kept = "the head solved again" if best.is_again else kept
            self._tell(f"Validation: head {first:.1%}, now {best.accuracy:.1%} ({kept})")
        if data.validation is None:
            return {}, None
        return model.evaluate(data.test, verbose=self._verbose, return_dict=True), best

    def _save(self, model: et.ElasticModel) -> None:
        """Weights, and the network where it is no more the one of the zoo."""
        model.save_weights(self._run.path / "model.weights.h5")
        if getattr(model, "removed", None):  # the weights are those of a smaller network
            model.network.save(self._run.path / "network.keras")


def loaded(settings: Any) -> et.data.ImageData:
    """The images of the run."""
    return sources.load(
        settings.data,
        channels=et.zoo.ARCHITECTURES[settings.model].channels,
        image_size=settings.input_size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        flip=settings.flip,
        validation_share=settings.validation,
        on_bad_image="skip" if settings.skip_bad_images else "raise",
    )
