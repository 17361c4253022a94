"""What to do when the loss or a weight is no longer a number, in a training that has backups."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.backup import state as backup_state
from elastic_tf.backup.slots import Slots
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.optimizers import selected

_LOWER = 0.5  # times the learning rate, after going back
_MOST = 10  # steps left out in a row


class Divergence:
    """Watches one training.

    Args:
        model: the model that is trained.
        slots: its backups.
        policy: one of `backup_options.POLICIES`: "restore" goes back to the weights of the last
            backup and halves the learning rate, once; "skip" takes back the step, which takes a
            copy of all that is trained at each of them; where that does not help, and with "stop",
            training ends.

    Attributes:
        is_lowered: whether the learning rate was.
    """

    def __init__(self, model: ElasticMixin, slots: Slots, policy: str) -> None:
        self.is_lowered = False
        self._model = model
        self._slots = slots
        self._policy = policy
        self._before: list[tuple[tf.Variable, tf.Tensor]] = []
        self._skipped = 0  # in a row

    def step_begins(self) -> None:
        """Keep what can be taken back."""
        if self._policy == "skip":
            model = self._model
            items = [*backup_state.variables(model), *backup_state.metrics(model)]
            self._before = [(item, item.read_value()) for item in items]

    def is_met(self, logs: dict[str, Any] | None, where: str) -> bool:
        """Whether the loss of a step is not a number; what can be done about it has been done.

        Where steps can be taken back, neither may the weights be spoiled by the gradients of a
        finite loss: at the next step it would be too late.

        Args:
            logs: of the step.
            where: it was, in words.

        Raises:
            FloatingPointError: nothing more can be done.
        """
        loss = (logs or {}).get("loss")
        found = None if loss is None or np.isfinite(loss) else f"loss={loss}"
        if found is None and self._policy == "skip":
            found = self._spoiled()
        if self._policy == "ignore" or found is None:
            self._skipped = 0
            return False
        self.meet(f"{found} {where}")
        return True

    def check(self, variable: tf.Variable, value: np.ndarray) -> None:
        """Keep a weight that is not a number out of a backup.

        Raises:
            FloatingPointError: naming it.
        """
        if self._policy != "ignore" and variable.trainable and value.dtype.kind == "f":
            if not np.isfinite(value).all():
                raise FloatingPointError(f"NaN or infinity in '{variable.name}'")

    def meet(self, what: str) -> None:
        """Do what the policy says.

        Raises:
            FloatingPointError: nothing more can be done.
        """
        if self._policy == "skip" and self._before and self._skipped < _MOST:
            self._skip(what)
        elif self._policy != "restore" or self.is_lowered or not self._go_back(what):
            again = ", after all that could be done" if self.is_lowered or self._skipped else ""
            raise FloatingPointError(
                f"The loss and the weights must be finite. Received: {what}{again}. The last good "
                f"state is in '{self._slots.path}'. Lower the learning rate, clip the gradients or "
                "look at the data, and choose another `backup_dir`."
            )

    def _spoiled(self) -> str | None:
        """The first weight that is not finite, in words."""
        for variable in self._model.trainable_variables:
            if variable.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(variable)):
                return f"NaN or infinity in '{variable.name}'"
        return None

    def _skip(self, what: str) -> None:
        self._skipped += 1
        known = {id(item) for item, _ in self._before}
        if any(id(item) not in known for item in backup_state.metrics(self._model)):
            self._model.reset_metrics()  # made in this step
        for item, value in self._before:
            item.assign(value)
        warnings.warn(f"Received: {what}. The step is left out.", stacklevel=4)

    def _go_back(self, what: str) -> bool:
        """Whether that was possible."""
        rate = selected.rate(self._model.optimizer)
        state = None if rate is None else self._slots.read()
        if rate is None or state is None:
            return False
        backup_state.assign(backup_state.variables(self._model), state.arrays, "variable")
        rate.assign(_LOWER * rate)
        self.is_lowered = True
        self._model.reset_metrics()
        if self._model._elastic.accumulation is not None:
            self._model._elastic.accumulation.forget()
        warnings.warn(
            f"Received: {what}. Weights and slots go back to epoch {state.data['epoch']}, step "
            f"{state.data['step']}; the learning rate is halved to {float(rate.numpy()):g}, once. "
            "What the epoch reports begins here.",
            stacklevel=4,
        )
        return True
