"""The library's side of a random comparison: one story, told to `model.fit`."""

import contextlib
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from fuzzing import kinds
from fuzzing.case import Case, Outcome, Solved, disturbed, mask
from interrupted import Kill, KillAt

from elastic_tf import stack


class Stop(Exception):
    """Raised by a callback in the middle of a `fit`."""


class Trainer:
    """One model of a case; `outcome` fills as `run` goes."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder  # for files, not made yet
        folder.mkdir()
        self.model, self._fits = self._made(), 0
        tensors = {id(v): k for k, v in enumerate(stack.trainable(self.model))}
        order = [tensors[id(tensor)] for tensor in self.model.tensors]
        self.outcome = Outcome(self.model.get_weights(), order)
        # that of Keras 2 with ".weights" holds metrics too, and asks for them
        self.first = str(folder / ("first.weights.h5" if kinds.IS_KERAS_3 else "first.h5"))
        self.model.save_weights(self.first)

    def run(self) -> None:
        """The whole story."""
        for item in self.case.story:
            verb, _, what = item.partition(" ")
            if verb == "plan":
                self.model.set_plan(mask(what, len(self.outcome.order)))
            elif verb == "fit":
                self._fit()
            elif verb == "solve":
                x, y, weight = self._arrays()
                if self.case.views > 1:
                    self.solved(et.solve_head(self.model, self._data()["x"]))
                else:
                    self.solved(et.solve_head(self.model, x, y, sample_weight=weight))
            elif verb == "compile":
                self._compile(self.model)
            else:
                self._save(what)
            self.outcome.weights.append(self.model.get_weights())

    def solved(self, solution: Any) -> None:
        """Remember the head that was set."""
        head = [layer for layer in self.model._flatten_layers() if layer.name == "head"][-1]
        self.outcome.solved.append(Solved(solution, head.get_weights()))

    def _made(self) -> Any:
        model = kinds.model(self.case, elastic=True)
        self._compile(model)
        return model

    def _compile(self, model: Any) -> None:
        case = self.case
        several = case.steps_per_execution > 1
        options = {"steps_per_execution": case.steps_per_execution} if several else {}
        losses = kinds.losses(case)
        loss = losses if len(losses) > 1 else losses[0]
        model.compile(
            kinds.optimizer(case), loss, keep=case.keep, run_eagerly=case.eager, **options
        )

    def _save(self, how: str) -> None:
        """Save the model, and go on with what is loaded."""
        path = str(self.folder / f"saved{self._fits}")
        if how == "keras":
            self.model.save(path := f"{path}.keras")
            self.model = tf.keras.models.load_model(path, {"ElasticModel": et.ElasticModel})
        else:
            before, self.model = self.model, self._made()
            if how == "weights":
                before.save_weights(path := f"{path}.weights.h5")
                self.model.load_weights(path)
            else:
                tf.train.Checkpoint(before).write(path)
                et.optimizers.build(self.model.optimizer, self.model.trainable_variables)
                tf.train.Checkpoint(self.model).read(path)

    def _arrays(self) -> tuple[Any, Any, Any]:
        x, y, weight = kinds.data(self.case)
        return x[0] if len(x) == 1 else x, y[0] if len(y) == 1 else y, weight

    def _data(self) -> dict[str, Any]:
        """Arguments of `fit`."""
        case, (x, y, weight) = self.case, self._arrays()
        given: dict[str, Any] = {}
        if case.weights == "class":
            given["class_weight"] = kinds.CLASS_WEIGHTS
        if case.path == "arrays":
            return {
                **given, "x": x, "y": y, "sample_weight": weight,
                "batch_size": case.batch, "shuffle": False,
            }  # fmt: skip
        if case.on_samples:
            augment = kinds.augment if case.views > 1 else None
            memory = 0 if case.path == "samples0" else None
            options = {"views": case.views, "augment": augment, "memory": memory}
            options.update(batch_size=case.batch, seed=case.seed, sample_weight=weight)
            return {**given, "x": et.Samples(x, y, **options)}
        whole = (x, y) if weight is None else (x, y, weight)
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = tf.data.Dataset.from_tensor_slices(whole).batch(case.batch).with_options(options)
        if case.path == "dataset":
            return {**given, "x": batches}

        def generator() -> Any:
            while True:
                yield from batches.as_numpy_iterator()

        return {**given, "x": generator(), "steps_per_epoch": case.steps}

    def _fit(self) -> None:
        if self.case.kill is not None:
            with contextlib.suppress(Kill):
                self._fit_once(KillAt("on_train_batch_end", *self.case.kill))
            self.model = self._made()  # as in a new process
        self._fit_once()
        self._fits += 1

    def _fit_once(self, *more: Any) -> None:
        case, callbacks = self.case, []
        elastic = self._callback() if case.rhos else None
        callbacks += [elastic] if elastic else []
        callbacks += [Solver(self)] if case.solve else []
        callbacks += [Acts(self, self._fits), *more]
        given = self._data()
        if case.validation:
            given["validation_data"] = self._arrays()[:2]
        with contextlib.suppress(Stop):
            self.model.fit(**given, epochs=case.epochs, verbose=0, callbacks=callbacks)
        records = elastic.selections if elastic else []
        self.outcome.selections.append([(record.epoch, record.mask) for record in records])

    def _callback(self) -> Any:
        case, count = self.case, len(self.outcome.order)
        importance: dict[str, Any] = {
            "depth": {},
            "magnitude": {"importance": et.importance.weight_magnitude},
            "loss": {"probe": self._arrays()[:2]},
        }[case.importance]
        ones, backup = np.ones(count), None
        if case.backup is not None:
            backup = et.Backup(self.folder / f"backup{self._fits}", every=case.backup or None)
        return et.ElasticCallback(
            et.TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=1.0),
            rho=lambda epoch: case.rhos[epoch % len(case.rhos)],
            interval=1,
            control=et.Control(share=0.0),
            backup=backup,
            **importance,
        )


class Solver(et.SolveHead):
    """Tells the trainer what was solved."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(again=False)
        self._trainer = trainer

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        had = self.solution
        super().on_epoch_begin(epoch, logs)
        if had is None:
            self._trainer.solved(self.solution)


class Acts(tf.keras.callbacks.Callback):
    """The events of one `fit`."""

    def __init__(self, trainer: Trainer, fit: int) -> None:
        super().__init__()
        self._trainer, self._fit, self._epoch = trainer, fit, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._act(-1)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._act(batch)

    def _act(self, batch: int) -> None:
        for do in self._trainer.case.acts(self._fit, self._epoch, batch):
            verb, _, what = do.partition(" ")
            getattr(self, f"_{verb}")(what)

    def _plan(self, what: str) -> None:
        self.model.set_plan(mask(what, len(self.model.tensors)))

    def _cache(self, what: str) -> None:
        self.model.cache_prefix(self.params["epochs"] - self._epoch)

    def _scale(self, what: str) -> None:
        tensor = self.model.tensors[int(what) % len(self.model.tensors)]
        tensor.assign(tensor * 1.3)

    def _set(self, what: str) -> None:
        self.model.set_weights(disturbed(self.model.get_weights(), int(what or 0)))

    def _load(self, what: str) -> None:
        self.model.load_weights(self._trainer.first)

    def _lr(self, what: str) -> None:
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * float(what))

    def _evaluate(self, what: str) -> None:
        x, y, _ = self._trainer._arrays()
        self.model.evaluate(x, y, batch_size=self._trainer.case.batch, verbose=0)

    def _stop(self, what: str) -> None:
        self.model.stop_training = True

    def _raise(self, what: str) -> None:
        raise Stop
