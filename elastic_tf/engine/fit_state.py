"""What `fit` needs to go on after a crash, carried by the model's checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elastic_tf.plan import Plan


class FitState(tf.train.experimental.PythonState):
    """The plan, and what callbacks remember, as a part of the model's checkpoints.

    `tf.keras.callbacks.BackupAndRestore` saves the model with everything it tracks, and restores it
    when `fit` starts again. Only then is the state taken over: weights that are loaded at any other
    time leave the plan alone.

    Attributes:
        values: what callbacks want to find again, JSON values by name; empty when `fit` starts.
        listening: whether a checkpoint that is read now is that of an interrupted `fit`.

    Args:
        plan: returns the plan, None where everything is trained.
        set_plan: takes it over.
    """

    def __init__(
        self, plan: Callable[[], Plan | None], set_plan: Callable[[Plan | None], None]
    ) -> None:
        self._plan, self._set_plan = plan, set_plan
        self.values: dict[str, Any] = {}
        self.listening = False

    def serialize(self) -> str:
        """Called when a checkpoint is written."""
        plan = self._plan()
        return json.dumps({"plan": plan and plan.to_json(), "values": self.values})

    def deserialize(self, string_value: bytes | str) -> None:
        """Called when a checkpoint is read."""
        if self.listening:
            data = json.loads(string_value)
            self.values = data["values"]
            self._set_plan(data["plan"] and Plan.from_json(data["plan"]))
