"""The same training without the library: a tape, and a plain Keras optimizer for each tensor.

So every tensor has its own slots and its own step count, and what no plan trains cannot change.
"""

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf
from fuzzing import kinds
from fuzzing.case import Case, Outcome, Solved, disturbed, mask

from elastic_tf import stack

NEAR = 1e-2  # of what a head predicts


class Raised(Exception):
    """A callback ended the `fit`."""


class Tensor:
    """A tensor of the reference's model and all that its training remembers."""

    def __init__(self, case: Case, variable: Any) -> None:
        self._case, self.variable = case, variable
        options = {"weight_decay": kinds.DECAY} if "decay" in case.options else {}
        self._counted = case.optimizer in kinds.COUNTED
        kind = "adam" if case.optimizer == "fused_adam" else case.optimizer
        self._optimizer = kinds.OPTIMIZERS[kind](case.rate, **options)
        self._optimizer.build([variable])
        self._slots = self._optimizer.variables

    def update(self, gradient: Any, rate: float, number: int) -> None:
        """The update `number`, from 0, of all that the model gets."""
        variable, optimizer = self.variable, self._optimizer
        if not self._counted:
            optimizer.iterations.assign(number)
        optimizer.learning_rate = rate
        if self._case.optimizer == "fused_adam" and isinstance(gradient, tf.IndexedSlices):
            # each row once; Keras 3's Adam takes the squares of the parts of a row
            whole = tf.convert_to_tensor(gradient)
            rows = tf.unique(gradient.indices).y
            gradient = tf.IndexedSlices(tf.gather(whole, rows), rows, gradient.dense_shape)
        optimizer.apply_gradients([(gradient, variable)])


class Reference:
    """Does what a story says; selections and penalties of heads are those of the library."""

    def __init__(self, case: Case, outcome: Outcome) -> None:
        self.case, self._outcome = case, outcome
        self.model = kinds.model(case, elastic=False)
        self.model.set_weights(outcome.start)
        # ids of the trainable variables that no step has changed so far
        self.untouched = {id(variable) for variable in self.model.trainable_variables}
        self._losses, self._data = kinds.losses(case), kinds.data(case)
        self._plan = np.ones(len(outcome.order), bool)
        self._fits, self._solved = 0, iter(outcome.solved)
        self._compile()

    def do(self, item: str) -> None:
        """One item of the story."""
        verb, _, what = item.partition(" ")
        if verb == "plan":
            self._plan = mask(what, len(self._plan))
        elif verb == "fit":
            plan = self._plan
            with contextlib.suppress(Raised):
                self._fit()
            self._plan = plan
            self._fits += 1
        elif verb == "solve":
            self._solve(self.case.views)
        elif verb == "compile":
            self._compile()
        else:
            self._plan = np.ones(len(self._plan), bool)
            if what == "weights":  # Keras does not read the optimizer's state from these
                self._compile()

    def _compile(self) -> None:
        variables = self.model.trainable_variables
        self._tensors = [Tensor(self.case, variables[k]) for k in self._outcome.order]
        self._updates, self._rate = 0, self.case.rate

    # One fit.

    def _fit(self) -> None:
        case, self._stops = self.case, False
        selections = dict(self._outcome.selections[self._fits])
        for epoch in range(case.epochs):
            self._plan = selections.get(epoch, self._plan)
            if case.solve and epoch == 0:
                self._solve(case.views)
            self._act(epoch, -1)
            for batch, rows in enumerate(self._rows(epoch)):
                if batch % case.steps_per_execution == 0:
                    self._act(epoch, batch)
                self._step(rows)
                if self._stops and (batch + 1) % case.steps_per_execution == 0:
                    return  # Keras asks after a step
            if self._stops:
                return

    def _rows(self, epoch: int) -> list[np.ndarray]:
        """Numbers of the rows of each batch."""
        case = self.case
        if not case.on_samples:
            starts = range(case.batch, case.samples, case.batch)
            return np.array_split(np.arange(case.samples), starts)
        order = np.random.default_rng((case.seed, epoch)).permutation(case.samples)
        order = order[: case.steps * case.batch] + case.samples * (epoch % case.views)
        return list(order.reshape(case.steps, case.batch))

    def _act(self, epoch: int, batch: int) -> None:
        """Events there."""
        for do in self.case.acts(self._fits, epoch, batch):
            verb, _, what = do.partition(" ")
            if verb == "plan":
                self._plan = mask(what, len(self._plan))
            elif verb == "scale":
                variable = self._tensors[int(what) % len(self._tensors)].variable
                variable.assign(variable * 1.3)
            elif verb == "set":
                self.model.set_weights(disturbed(self.model.get_weights(), int(what or 0)))
            elif verb == "load":
                self.model.set_weights(self._outcome.start)
            elif verb == "lr":
                self._rate *= float(what)
            elif verb == "stop":
                self._stops = True
            elif verb == "raise":
                raise Raised

    # One step.

    def _step(self, rows: np.ndarray) -> None:
        chosen = np.flatnonzero(self._plan)
        gradients = self._gradients(rows, [self._tensors[k].variable for k in chosen])
        self._update(gradients)

    def _gradients(self, rows: np.ndarray, variables: list[Any]) -> list[Any]:
        """Of the mean loss; normalisations of which nothing is trained stand still."""
        x, y, weight = self._batch(rows)
        kind, trained = tf.keras.layers.BatchNormalization, {*map(id, variables)}
        norms = [layer for layer in self.model._flatten_layers() if isinstance(layer, kind)]
        norms = [one for one in norms if trained.isdisjoint(map(id, one.trainable_variables))]
        for norm in norms:
            norm.trainable = False
        try:
            with tf.GradientTape() as tape:
                said = tf.nest.flatten(self.model(x[0] if len(x) == 1 else x, training=True))
                terms = [loss(*part, weight) for loss, *part in zip(self._losses, y, said)]
                loss = tf.add_n([*terms, *self.model.losses])
            gradients = tape.gradient(loss, [stack.raw(variable) for variable in variables])
        finally:
            for norm in norms:
                norm.trainable = True
        return gradients

    def _batch(self, rows: np.ndarray) -> tuple[list[Any], list[Any], Any]:
        (x, y, weight), samples = self._data, rows % self.case.samples
        x = [self._viewed(rows)] if self.case.views > 1 else [part[samples] for part in x]
        if self.case.weights == "class":
            labels = y[0] if y[0].ndim == 1 else y[0].argmax(-1)
            of_class = np.array([kinds.CLASS_WEIGHTS[label] for label in labels], np.float32)
            weight = of_class if weight is None else weight * of_class
        return x, [part[samples] for part in y], None if weight is None else weight[samples]

    def _viewed(self, rows: np.ndarray) -> np.ndarray:
        seeds = [np.array([self.case.seed, row]) for row in rows]
        images = self._data[0][0][rows % self.case.samples]
        return np.stack([kinds.augment(x, seed).numpy() for x, seed in zip(images, seeds)])

    def _update(self, gradients: list[Any]) -> None:
        case, chosen = self.case, np.flatnonzero(self._plan)
        if "global_clipnorm" in case.options:
            gradients, _ = tf.clip_by_global_norm(gradients, kinds.CLIP)
        elif "clipnorm" in case.options:
            gradients = [tf.clip_by_norm(gradient, kinds.CLIP) for gradient in gradients]
        rate = self._rate
        if "schedule" in case.options:
            rate *= 0.7 ** (self._updates / 2)
        for k, gradient in zip(chosen, gradients):
            self._tensors[k].update(gradient, rate, self._updates)
            self.untouched.discard(id(self._tensors[k].variable))
        self._updates += 1

    # Heads.

    def _solve(self, views: int) -> None:
        """Check the head that the library found, and take it over."""
        solved = next(self._solved)
        head = self.model.get_layer("head")
        features, targets, weights = [], [], []
        before = tf.keras.Model(self.model.inputs, head.input)
        for rows in np.arange(views * self.case.samples).reshape(views, -1):
            x, y, weight = self._batch(rows)
            features.append(before(x[0], training=False).numpy())
            targets.append(y[0])
            weights.append(np.ones(len(rows)) if weight is None else weight)
        check_solution(self.case, solved, *map(np.concatenate, (features, targets, weights)))
        head.set_weights(solved.weights)
        self.untouched -= {id(variable) for variable in head.trainable_variables}


def check_solution(
    case: Case, solved: Solved, features: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> None:
    """Compare a head with the ridge regression of its penalty, solved by normal equations."""
    solution, bias = solved.solution, case.bias
    assert solution.samples == len(features)
    wanted = np.eye(3)[targets] if case.loss == "sparse" else np.asarray(targets, np.float64)
    middle = [np.average(part, 0, weight) if bias else 0.0 for part in (features, wanted)]
    x, y, root = features - middle[0], wanted - middle[1], np.sqrt(weight)[:, None]
    _, values, rows = np.linalg.svd(root * x, full_matrices=False)
    least = np.sqrt(max(x.shape) * np.finfo(np.float32).eps) * values[0]
    x = x @ (known := rows[values > least].T)  # without the directions that are rounding
    gram = (weight[:, None] * x).T @ x + solution.penalty * np.eye(x.shape[1])
    kernel = np.linalg.solve(gram, (weight[:, None] * x).T @ y)
    theirs = solution.scale * (x @ kernel + middle[1])
    features = x @ known.T + middle[0]
    ours = features @ solved.weights[0] + (solved.weights[1] if bias else 0.0)
    off = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3)
    assert off < NEAR, f"the head predicts {off:.2g} off the ridge of its penalty"
