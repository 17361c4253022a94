"""A limit of memory, and which plans keep it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, optimizers
from elastic_tf.inputs.batches import batch_of
from elastic_tf.memory import executor, steps
from elastic_tf.memory.ops import tensor_bytes
from elastic_tf.memory.traced import TracedStep
from elastic_tf.plan import EXACT, FROZEN, Plan
from elastic_tf.stack import variables_of


class Limit:
    """So much memory for a training step: `select_plan(..., memory=et.memory.Limit(...))`.

    The full step is traced once. Of what a plan trains follows which of its ops run, and when
    TensorFlow's executor allocates what; see `elastic_tf.memory.step`.

    Args:
        limit: bytes, or a text like "256 MiB".
        model: compiled elastic model.
        data: as of `elastic_tf.memory.step`.
        beside: bytes that are held beside the step under a plan: samples, cached activations.

    Attributes:
        bytes: the limit.
        held: bytes that are there all the time: batch, weights, slots.
    """

    def __init__(
        self,
        limit: int | str,
        model: Any,
        data: Any,
        *,
        beside: Callable[[Plan], int] = lambda plan: 0,
    ) -> None:
        self.bytes = arguments.memory("limit", limit)
        self._model, self._batch, self._beside = model, batch_of(data), beside
        steps.build(model, self._batch)
        self._full = TracedStep.of(model, self._batch, Plan.full(len(model.tensors)))
        self.held = sum(size for *_, size in steps.persistent(model, self._batch))
        self._peaks: dict[Plan, int] = {}

    def peak(self, plan: Plan) -> int:
        """Bytes at the fullest moment of a step, what is there all the time included."""
        if plan not in self._peaks:
            is_part = self._full.is_separable and np.isin(plan.modes, (FROZEN, EXACT)).all()
            if is_part:
                step = self._full.restricted(plan.mask)
            else:
                step = TracedStep.of(self._model, self._batch, plan)
            whole = self.held + executor.run(step).taken + self._beside(plan)
            self._peaks[plan] = round(whole)
        return self._peaks[plan]

    @cached_property
    def items(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What a step keeps for its gradients, as cost items: an estimate, in one sum.

        Members, bool (S, N): the tensors that need each; bytes, float64 (S,); and how many of these
        are what rectifiers give, float64 (S,).
        """
        count, sizes, rectified = len(self._model.tensors), Counter[int](), Counter[int]()
        for (name, port), bits in self._full.kept().items():
            work = self._full.works[name]
            sizes[bits] += work.sizes[port]
            rectified[bits] += work.sizes[port] if work.type in ("Relu", "Relu6") else 0
        for k, variable in enumerate(self._model.tensors):  # its gradient
            sizes[1 << k] += tensor_bytes(variable) or 0
        members = np.array([[bits >> k & 1 for k in range(count)] for bits in sizes], bool)
        whole, some = (np.array([one[bits] for bits in sizes], float) for one in (sizes, rectified))
        return members, whole, some

    def probe_rows(self) -> int:
        """Samples whose gradients of all tensors can be computed at a time.

        Beside the step the gradients of all tensors are held, the weights before the update, and
        what is put back after it: weights and slots.

        Raises:
            ValueError: not even of one.
        """
        batch = int(tf.nest.flatten(self._batch)[0].shape[0])
        state = [*variables_of(self._model), *optimizers.state(self._model.optimizer)]
        weights = sum(tensor_bytes(one) or 0 for one in self._model.tensors)
        held = self.held + 2 * weights + sum(tensor_bytes(one) or 0 for one in state)
        held += self._beside(Plan.from_mask(np.zeros(len(self._model.tensors), bool)))
        of_row = executor.run(self._full).taken / batch
        rows = int((self.bytes - held) // of_row)
        if rows < 1:
            raise ValueError(
                "The importance of all tensors must be evaluated within `memory`. Received: "
                f"{arguments.mebibytes(self.bytes)}, where one sample takes "
                f"{arguments.mebibytes(round(held + of_row))}. Give "
                "more, or leave `probe` and `importance` out: the last tensors are trained then."
            )
        return rows
