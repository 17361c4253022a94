"""`solve_head`: from a model and its data to a new head."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.files import array, quarter_of_memory
from elastic_tf.lite import ridge
from elastic_tf.train.head import targets
from elastic_tf.train.head.features import collect, dense_layer
from elastic_tf.train.samples import Samples

_MEMORY = 1 << 30  # bytes
AGAIN, BETWEEN = "the head solved again", "weights between, the head solved again"
_KEY = "head"  # in `model.fit_state`
_WAY = 0.6  # of the way from the first weights to the last: see `solve_between`


@dataclasses.dataclass(frozen=True)
class HeadSolution:
    """What `solve_head` found.

    Attributes:
        layer: name of the layer whose weights were set.
        penalty: of the sum of squared weights, beside the weighted sum of squared errors.
        scale: logits / regression values; 1 for regression.
        accuracy: weighted share of samples that the solution without them classifies correctly;
            None for regression. Of `Samples`, a sample is left out with all its views.
        error: weighted mean squared leave-one-out error, of one-hot targets for classes.
        samples: number of samples; of `Samples`, of their rows.
        seconds: wall-clock, forward pass included.
        start: factor to the weights from which training begins, see `begin`; 1 for regression.
    """

    layer: str
    penalty: float
    scale: float
    accuracy: float | None
    error: float
    samples: int
    seconds: float
    start: float = 1.0


def solve_head(
    model: tf.keras.Model,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    layer: str | None = None,
    scale: float | None = None,
    until: float | None = None,
) -> HeadSolution:
    """Set the weights of a dense layer to the best linear head, in closed form.

    Everything before the layer runs once, in inference mode, and stays as it is; what it gives is
    kept in memory up to 1 GiB, at most a quarter of the machine's, beyond in a file. Of maps with a
    target at each position, 16 positions of each sample are drawn. A layer whose
    activation or whose compiled loss is that of classes gets logits: ridge regression on their
    indicators, scaled by likelihood. Any other is regression, of one or more outputs.

    Args:
        model: any Keras model that was called or built before.
        x: inputs with samples first; or a finite `tf.data.Dataset` of batches (x, y) or
            (x, y, sample_weight); or `Samples`, each of them in all its views.
        y: class numbers, rows of zeros and ones, or real values; None with a dataset or samples.
        sample_weight: one per sample, not negative.
        layer: name of the dense layer; None takes the model's last one.
        scale: logits of classes / regression values; None: by the likelihood of samples left out.
        until: when the head must be there, a time of `time.perf_counter`: it is solved on as many
            `Samples` as were read by then, in random order.

    Returns:
        Penalty, scale and leave-one-out accuracy.

    Raises:
        ValueError: there is no such layer, or data do not fit it; the model is as it was.
    """
    started = time.perf_counter()
    dense, memory = dense_layer(model, layer), min(_MEMORY, quarter_of_memory())
    if not isinstance(x, (Samples, tf.data.Dataset)):
        x = Samples(x, y, sample_weight=sample_weight, batch_size=1)
    features, y, weight, each = collect(model, dense, x, memory, until)
    groups = np.arange(len(features)) // each  # numbers of samples, as they were read
    if isinstance(x, Samples):
        groups = groups % x.count if until is None else groups // x.views
    kind = targets.kind(model, dense, y)
    wanted = targets.wanted(y, dense.units, kind)
    found = ridge.Ridge(
        features,
        wanted,
        weight,
        intercept=dense.use_bias,
        empty=lambda shape: array(shape, np.float64, memory=memory),
        groups=groups,
    )
    head = found.head(targets.LOSSES.get(kind), scale)
    errors = ((head.left_out / head.scale - wanted) ** 2).mean(axis=1)
    values = [head.kernel, head.bias][: 1 + dense.use_bias]
    dense.set_weights([value.astype(np.float32) for value in values])
    return HeadSolution(
        layer=dense.name,
        penalty=head.penalty,
        scale=head.scale,
        accuracy=targets.accuracy(head.left_out, wanted, weight, kind),
        error=float(np.average(errors, weights=weight)),
        samples=len(wanted) // each,
        seconds=time.perf_counter() - started,
        start=head.start,
    )


def begin(model: tf.keras.Model, solution: HeadSolution) -> None:
    """Make a solved head as unsure of its own samples as of others, for training to begin from."""
    dense = dense_layer(model, solution.layer)
    dense.set_weights([solution.start * value for value in dense.get_weights()])


def solve_again(model: tf.keras.Model, samples: Samples, first: HeadSolution) -> bool:
    """Solve the head on what was trained since; whether it is worth keeping.

    It is not where it has a larger leave-one-out error than the first one: the layers before it
    were fitted to all samples, so that a smaller error says less. Nor do samples left out tell how
    sure it may be: the first scale stays. On held-out images of four sets the median crossentropy
    was 1.15 of the first head, 1.06 with its scale, and 1.42, 27 at most, with one of their own.

    Source: Kirichenko et al., Last Layer Re-Training, ICLR 2023.
    """
    try:
        again = solve_head(model, samples, layer=first.layer, scale=first.scale)
    except ValueError:  # training went so wrong that features are not finite
        return False
    return again.error <= first.error


def solve_between(
    model: tf.keras.Model,
    samples: Samples,
    first: HeadSolution,
    start: list[np.ndarray],
    judge: Callable[[], dict[str, float]],
) -> tuple[str, dict[str, float]] | None:
    """Solve the head again, and once more with weights between the first and the last.

    Training can go too far where classes are hard to tell. The model gets what has the smaller
    loss by `judge`, which looks at samples that are not trained on; its name and what was judged
    are returned, None where the head is not worth keeping. By 30 to 200 held-out images this was
    worth 0.6 points on average in 14 trainings on images of four sets, -1.0 to 2.8.

    Source: Wortsman et al., Robust Fine-Tuning of Zero-Shot Models, CVPR 2022, whose head is not
    solved again.
    """
    if not solve_again(model, samples, first):
        return None
    last, found = model.get_weights(), judge()
    model.set_weights(
        [a + _WAY * (b - a) if b.dtype.kind == "f" else b for a, b in zip(start, last)]
    )
    if solve_again(model, samples, first) and (between := judge())["loss"] < found["loss"]:
        return BETWEEN, between
    model.set_weights(last)
    return AGAIN, found


def solvers(model: tf.keras.Model) -> list[SolveHead]:
    """Those among the callbacks of the `fit` that an elastic model is in."""
    given = tf.nest.flatten(model._elastic.callbacks or [])
    return [one for one in given if isinstance(one, SolveHead)]


class SolveHead(tf.keras.callbacks.Callback):
    """Solves the head as a `fit` on `Samples` begins and ends: `callbacks=[elastic, SolveHead()]`.

    It uses what the callbacks before it computed once for each sample: one forward pass serves the
    head and the training, which begins from it at `solution.start` of its scale. Put callbacks
    that rely on the head's gradients behind it. A head that gradients leave behind is worse than
    the best one of the same features: at the end, when the other callbacks are through, it is
    solved anew. Where that has a larger leave-one-out error than at the beginning, training has
    spoiled the features: there is a warning, and the trained head stays. One that is neither
    trained nor solved again stays at that scale, and says the same classes.

    Args:
        layer: as for `solve_head`.
        again: whether it is solved at the end, too.

    Attributes:
        solution: what `solve_head` found at the beginning; None before.
    """

    def __init__(self, layer: str | None = None, *, again: bool = True) -> None:
        super().__init__()
        self.layer, self.again = layer, again
        self.solution: HeadSolution | None = None
        self._solved: tuple[int, list[np.ndarray]] | None = None  # after so many steps, its weights

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget an earlier `fit`."""
        self.solution = self._solved = None

    def on_train_end(self, logs: Any = None) -> None:
        """Have the head solved on what was trained, when others have put their weights back."""
        if self.again and self.solution is not None and self.model._elastic.rows is not None:
            self.model._elastic.endings.insert(0, self._solve_again)

    def _solve_again(self) -> None:
        first, rows = self.solution, self.model._elastic.rows
        assert first is not None
        dense = dense_layer(self.model, first.layer)
        trained = dense.get_weights()
        if self._solved is not None and self._solved[0] == int(self.model.optimizer.iterations):
            dense.set_weights(self._solved[1])  # nothing was trained
        elif not solve_again(self.model, rows.samples, first):
            dense.set_weights(trained)
            warnings.warn(
                "Training must leave features that a head can be solved on. Received: a larger "
                f"leave-one-out error than before it, {first.error:.3g}. The trained head stays. "
                "Lower the learning rate.",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Before the first step, of a `fit` that goes on after an interruption the very first."""
        held = getattr(self.model, "fit_state", {}).get(_KEY)
        if held is not None:
            # a network that was built again may have other names of its own
            layer = dense_layer(self.model, self.layer).name
            self.solution = HeadSolution(**{**held, "layer": layer})
        if self.solution is None:
            rows = self.model._elastic.rows
            if rows is None:
                raise TypeError(
                    "SolveHead is for `fit` on et.Samples. Received: other data. Call "
                    "et.solve_head(model, dataset) before."
                )
            ledger, until = self.model._elastic.ledger, None
            if ledger is not None and ledger.deadline is not None:
                until = time.perf_counter() + ledger.deadline - ledger.elapsed - ledger.ending
            self.solution = solve_head(self.model, rows.samples, layer=self.layer, until=until)
            if ledger is not None:
                ledger.count("head")
            dense = dense_layer(self.model, self.layer)
            self._solved = int(self.model.optimizer.iterations), dense.get_weights()
            begin(self.model, self.solution)
            self.model.fit_state[_KEY] = dataclasses.asdict(self.solution)
