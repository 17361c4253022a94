"""What a training remembers of its selections, and the table made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from elastic_tf.choose.selection import Selection
from elastic_tf.files import format_table
from elastic_tf.plan import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class SelectionRecord:
    """One selection made during training."""

    epoch: int  #: the epoch that it was made for, or in, from 0
    rho: float  #: allowed step time / full step time that was asked for
    #: What was selected, with its predicted time; its `rho` is what the selector was asked for
    #: after the control corrected `rho`.
    selection: Selection
    importance: np.ndarray  #: what it was selected by; float64, shape (N,), forward order
    predicted_ratio: float  #: predicted step time / full step time
    seconds_importance: float  #: wall-clock of drawing the probe and evaluating the importance
    seconds_solve: float  #: wall-clock of the solver
    #: Wall-clock of the first step under the new mask beyond the mean of the following ones; None
    #: until the epoch has ended.
    seconds_retrace: float | None = None
    #: Measured step time / measured full step time; None where no full step was timed.
    achieved_ratio: float | None = None
    #: Why it was made, "interval", or between two intervals "ratio" (the achieved ratio left the
    #: band) or "deadline".
    reason: str = "interval"
    step: int = 0  #: steps of the epoch that had been made

    @property
    def mask(self) -> np.ndarray:
        """True where a tensor is trained; bool, shape (N,), forward order."""
        return self.selection.mask

    @property
    def is_full(self) -> bool:
        """Whether everything is trained exactly."""
        return self.selection.plan == Plan.full(len(self.mask))


_MEASURED = (
    *("predicted_ratio", "achieved_ratio"),
    *("seconds_importance", "seconds_solve", "seconds_retrace"),
)
_NOISE = 0.1  # what a ratio measured once may be off by on a busy machine
COLUMNS = (
    *("epoch", "step", "reason", "trained::tensors", "rho:.3f", "asked:.3f"),
    *("predicted_ratio:.3f:predicted", "achieved_ratio:.3f:achieved"),
    *("seconds_importance:.2f:worth s", "seconds_solve:.3f:solve s"),
    "seconds_retrace:.2f:trace s",
)


def table(records: Sequence[SelectionRecord]) -> str:
    """A line for each selection, narrow enough for a notebook.

    `asked` is what the selector was asked for, `worth s` the seconds of evaluating the importance.
    A last line says what to do where less than half of the predicted saving is achieved.
    """
    shown = [{**row, "trained": f"{row['trained']} of {row['tensors']}"} for row in rows(records)]
    text = format_table(shown, COLUMNS)
    measured = [(one.predicted_ratio, one.achieved_ratio) for one in records if one.achieved_ratio]
    predicted, achieved = measured[-1] if measured else (1.0, 0.0)
    if achieved - predicted > max(0.5 * (1.0 - predicted), _NOISE):
        text += (
            f"\n{achieved:.3f} was achieved where {predicted:.3f} was predicted: steps of a small "
            "network are mostly fixed costs. Train in larger batches, or with "
            "compile(steps_per_execution=16). On a large one, profile again on an idle machine."
        )
    return text


def rows(records: Sequence[SelectionRecord]) -> list[dict[str, Any]]:
    """The numbers of each selection, epochs from 1; None where one is not known."""
    return [
        {
            "epoch": record.epoch + 1,
            "step": record.step,
            "reason": record.reason,
            "trained": int(record.mask.sum()),
            "tensors": len(record.mask),
            "rho": record.rho,
            "asked": record.selection.rho,
            **{name: getattr(record, name) for name in _MEASURED},
        }
        for record in records
    ]


def line(record: SelectionRecord) -> str:
    """What is said when a selection is made; epochs count from 1, as Keras prints them."""
    text = (
        f"Epoch {record.epoch + 1}: trains {record.mask.sum()} of {len(record.mask)} tensors, "
        f"rho {record.rho:.3f}, predicted ratio {record.predicted_ratio:.3f}"
    )
    seconds = record.seconds_importance + record.seconds_solve
    return f"{text}, selected in {seconds:.2f} s because of the {record.reason}"


def from_json(data: dict[str, Any]) -> SelectionRecord:
    """A record that `to_json` was made of."""
    plan = Plan.from_json(data["selection"]["plan"])
    selection = Selection(**{**data["selection"], "plan": plan})
    importance = np.array(data["importance"])
    return SelectionRecord(**{**data, "selection": selection, "importance": importance})
