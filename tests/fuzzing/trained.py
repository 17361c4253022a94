"""The library's side of a random comparison: one story, told to `model.fit`."""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from fuzzing import kinds
from fuzzing.case import Case, Outcome, Solved, disturbed, mask
from interrupted import Kill, KillAt, untuned

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
                given = (self._data()["x"],) if self.case.views > 1 else (x, y)
                weight = None if self.case.views > 1 else weight
                self.solved(et.solve_head(self.model, *given, sample_weight=weight))
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
        self._compile(model := kinds.model(self.case, elastic=True))
        return model

    def _compile(self, model: Any) -> None:
        case, losses = self.case, kinds.losses(self.case)
        several = case.steps_per_execution > 1
        model.compile(
            kinds.optimizer(case),
            losses if len(losses) > 1 else losses[0],
            keep=case.keep,
            run_eagerly=case.eager,
            **({"steps_per_execution": case.steps_per_execution} if several else {}),
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
            given.update(x=x, y=y, sample_weight=weight, batch_size=case.batch, shuffle=False)
        elif case.on_samples:
            augment = kinds.augment if case.views > 1 else None
            options = {"views": case.views, "augment": augment, "sample_weight": weight}
            options.update(batch_size=case.batch, seed=case.seed)
            memory = 0 if case.path == "samples0" else None
            given["x"] = et.Samples(x, y, memory=memory, **options)
        else:
            whole = (x, y) if weight is None else (x, y, weight)
            batches = untuned(tf.data.Dataset.from_tensor_slices(whole).batch(case.batch))
            given["x"] = batches
            if case.path == "generator":
                given["x"] = (one for _ in itertools.count() for one in batches.as_numpy_iterator())
                given["steps_per_epoch"] = case.steps
        return given

    def _fit(self) -> None:
        if self.case.kill is not None:
            with contextlib.suppress(Kill):
                self._fit_once(KillAt("on_train_batch_end", *self.case.kill))
            self.model = self._made()  # as in a new process
        self._fit_once()
        self._fits += 1

    def _fit_once(self, *more: Any) -> None:
        case, given = self.case, self._data()
        elastic = [self._callback()] if case.rhos else []
        solver = [Solver(self)] if case.solve else []
        if case.validation:
            given["validation_data"] = self._arrays()[:2]
        given["callbacks"] = [*elastic, *solver, Acts(self, self._fits), *more]
        with contextlib.suppress(Stop):
            self.model.fit(**given, epochs=case.epochs, verbose=0)
        records = elastic[0].selections if elastic else []
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
        model, (x, y, _) = self.model, self._trainer._arrays()
        for do in self._trainer.case.acts(self._fit, self._epoch, batch):
            verb, _, what = do.partition(" ")
            if verb == "plan":
                model.set_plan(mask(what, len(model.tensors)))
            elif verb == "cache":
                model.cache_prefix(self.params["epochs"] - self._epoch)
            elif verb == "scale":
                tensor = model.tensors[int(what) % len(model.tensors)]
                tensor.assign(tensor * 1.3)
            elif verb == "set":
                model.set_weights(disturbed(model.get_weights(), int(what or 0)))
            elif verb == "load":
                model.load_weights(self._trainer.first)
            elif verb == "lr":
                model.optimizer.learning_rate.assign(model.optimizer.learning_rate * float(what))
            elif verb == "evaluate":
                model.evaluate(x, y, batch_size=self._trainer.case.batch, verbose=0)
            elif verb == "stop":
                model.stop_training = True
            else:
                raise Stop
