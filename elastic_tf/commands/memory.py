"""Say what memory a training step needs, and whether it fits, before it runs.

Example::

    python -m elastic_tf memory --model mobilenet_v2 --input-size 128 --batch-size 16 \\
        --limit "256 MiB" --out memory.png

The step is planned layer by layer, as by a runtime that places each tensor at a planned offset, and
traced op by op, as TensorFlow runs it: that takes more, for it allocates as it goes. Its library
is not counted. --last trains the last tensors alone. --out draws what stands where and when, or
writes the plan as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.commands import options
from elastic_tf.commands.commandline import option, parse
from elastic_tf.files.table import Column, format_table

if TYPE_CHECKING:
    from elastic_tf.memory import MemoryPlan

_SHOWN = 12  # tensors in a table
_MIB = 2**20
_COLUMNS = (
    "tensor",
    "kind",
    Column("bytes", "MiB", ".2f"),
    Column("offset", "offset MiB", ".2f"),
    Column("first", "from step"),
    Column("last", "to step"),
)


@dataclasses.dataclass(frozen=True)
class Settings(options.Network):
    """What to plan, and where to draw it."""

    classes: int = option(1000, help="classes of the head")
    last: int | None = option(None, help="train so many tensors, the last; all if left out")
    clip: bool = option(False, help="gradients are clipped together, and all are kept until then")
    limit: str | None = option(None, help="memory that there is: '256 MiB', '2 GiB' or bytes")
    out: Path | None = option(None, help="the picture (.png, .pdf, .svg) or the plan (.json)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan, print, and draw."""
    settings = parse(Settings, __doc__ or "", arguments)
    limit = None if settings.limit is None else checks.memory("limit", settings.limit)
    from elastic_tf import memory, zoo
    from elastic_tf.commands.training import harness

    names = ("classes", "input_size", "alpha", "bn_training")
    network = zoo.build(settings.model, **{name: getattr(settings, name) for name in names})
    model = harness.compiled(network, settings.optimizer, 1e-4)
    mask = last_tensors(len(model.tensors), settings.last)
    plan = memory.plan(model, settings.batch_size, mask, settings.clip)
    print(report(plan))
    traced = memory.step(model, _zeros(model, settings.batch_size), mask)
    print(of_tensorflow(traced, limit))
    if limit is not None:
        most = memory.largest_batch(model, limit, mask, settings.clip)
        print(verdict(plan, limit, most))
    if settings.out is not None:
        if settings.out.suffix == ".json":
            plan.save(settings.out)
        else:
            from elastic_tf import plots

            plots.save(plan.plot(), settings.out)
        print(f"Written to {settings.out}")


def last_tensors(count: int, last: int | None) -> np.ndarray:
    """True for the last of `count` tensors; all if `last` is None."""
    trained = count if last is None else checks.count("last", last, most=count)
    return np.arange(count) >= count - trained


def report(plan: MemoryPlan) -> str:
    """The largest of what is in use when most is, and the totals."""
    at = plan.fullest
    largest = sorted(
        (buffer for buffer in plan.buffers if buffer.orders[0] <= at <= buffer.orders[-1]),
        key=lambda buffer: -buffer.bytes,
    )
    rows = [
        {
            "tensor": one.name,
            "kind": one.kind,
            "bytes": one.bytes / _MIB,
            "offset": one.offset / _MIB,
            "first": one.orders[0],
            "last": one.orders[-1],
        }
        for one in largest[:_SHOWN]
    ]
    weights = sum(one.bytes for one in plan.buffers if one.kind in ("weight", "slots")) / _MIB
    return "\n".join(
        [
            f"Most is in use at step {at} of {len(plan.live)}, {plan.steps[at]}:",
            format_table(rows, _COLUMNS),
            f"\nBatch {plan.batch_size}: planned peak {plan.peak / _MIB:.1f} MiB, of it weights "
            f"and slots {weights:.1f}",
            f"Lower bound {plan.lower_bound / _MIB:.1f} MiB; without planning "
            f"{plan.unplanned / _MIB:.1f} MiB",
        ]
    )


def of_tensorflow(traced: MemoryPlan, limit: int | None) -> str:
    """What TensorFlow takes, and whether that is within a limit."""
    most = traced.lower_bound
    fits = "" if limit is None else f": {'within' if most <= limit else 'beyond'} the limit"
    return (
        f"TensorFlow takes {most / _MIB:.1f} MiB, weights and all slots included, at "
        f"{traced.steps[traced.fullest]}{fits}"
    )


def _zeros(model: Any, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of nothing."""
    shape = model.inputs[0].shape[1:]
    return np.zeros((batch_size, *shape), np.float32), np.zeros(batch_size, np.int64)


def verdict(plan: MemoryPlan, limit: int, most: int) -> str:
    """Whether the plan fits, and up to which batch size it would."""
    fits = "fits" if plan.peak <= limit else "does not fit"
    largest = f"the largest batch that does is {most}" if most else "no batch does"
    return f"{limit / _MIB:.1f} MiB: it {fits}; {largest}"
