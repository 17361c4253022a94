"""The timing profile: what training each tensor costs on one device, as data and as a file.

A file has the fields of a `TimingProfile` as one JSON object, and a checksum. Ranges [first, last]
stand for the tensors of a cost item.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import from_ranges, now, read_json, to_json, to_ranges, write_json
from elastic_tf.plan import Plan, as_plan
from elastic_tf.timing import describe_device

SCHEMA_VERSION = 7
_REMEASURE = (
    "Profile this model again with elastic_tf.profile_model, or with python -m elastic_tf profile "
    "if it is one of the zoo."
)
_MAX_TIME = 1e15  # microseconds: thirty years
# A profile of other values may be off, which a warning tells.
_COMPARED = ("name", "onednn", "inter_op_threads", "intra_op_threads", "xla", "optimizer")


@dataclasses.dataclass(frozen=True)
class CostItem:
    """Work of a step that is paid for if at least one of some tensors is trained.

    Of one tensor: its weight gradient and its update. Of several: backward work that each of them
    needs, and what training one costs in the forward pass.
    """

    tensors: tuple[int, ...]  #: their indices, ascending
    time: float  #: microseconds per step


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a trainable tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TimingProfile:
    """Times of one training step on one device, split by the tensors that cause them.

    Times are microseconds per step; arrays have shape (N,) and run in forward order. The method is
    "profiler" (op times scaled to the full step and the forward pass), "calibrated" (corrected by
    steps under a few masks), "differences" (steps under a few masks alone) or "table" (given
    by hand).

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 2.2 and 5.
    """

    t_forward: float  #: forward pass, loss and metrics of a step that trains nothing
    items: tuple[CostItem, ...]  #: backward pass and update, by what makes them necessary
    count: int  #: number of tensors N
    #: Of t_forward, the work that need not run in a step that takes cached activations, by the
    #: tensors that make it necessary if they are trained.
    prefix: tuple[CostItem, ...] = ()
    tensors: tuple[TensorSpec, ...] = ()  #: the model's; empty for a profile made from a table
    input_shape: tuple[tuple[int | None, ...], ...] = ()  #: of one sample, for each input
    batch_size: int = 0  #: samples in a step
    optimizer: str = ""  #: class name of the optimizer, whose update is part of the step
    #: What `describe_device` said where it was measured.
    device: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    method: str = "table"
    note: str = ""  #: why the method was differences
    calibration: tuple[float, ...] = ()  #: factors, see `elastic_tf.timing.profiler.fit`
    repeats: int = 0  #: timed steps behind each median
    spread: float = 0.0  #: relative half-width of the middle half of the full step times
    #: How far the ratio of forward pass and full step may be off; half-width of its 95 % interval,
    #: and what differences leave unexplained.
    uncertainty: float = 0.0
    share_attributed: float = 1.0  #: of op time outside the forward pass, its tensors found
    created: str = ""  #: date and time, ISO 8601

    @classmethod
    def from_chain(
        cls, *, t_dw: Sequence[float], t_dy: Sequence[float], t_forward: float
    ) -> TimingProfile:
        """A profile from a table of `t_dw` and `t_dy`, shape (N,), for what-if studies.

        Raises:
            ValueError: lengths differ, or a time is negative or not finite.
        """
        dw = arguments.numbers("t_dw", t_dw, low=0.0, high=_MAX_TIME)
        dy = arguments.numbers("t_dy", t_dy, size=len(dw), low=0.0, high=_MAX_TIME)
        items = [CostItem((k,), time) for k, time in enumerate(dw.tolist())]
        items += [CostItem(tuple(range(k + 1)), time) for k, time in enumerate(dy.tolist())]
        return cls(float(t_forward), tuple(one for one in items if one.time), len(dw))

    def __post_init__(self) -> None:
        arguments.count("count", self.count)
        arguments.number("t_forward", self.t_forward, low=0.0, high=_MAX_TIME)
        for item in (*self.items, *self.prefix):
            arguments.number("time", item.time, low=0.0, high=_MAX_TIME)
            if not item.tensors or not (np.diff([-1, *item.tensors, self.count]) > 0).all():
                raise ValueError(
                    "The `tensors` of a cost item must be indices from 0, ascending and below "
                    f"{self.count}. Received: {brief(item)}."
                )
        if not self.t_full:
            raise ValueError("Some work must take time. Received: a full step of 0 microseconds.")

    def __repr__(self) -> str:
        return (
            f"TimingProfile({self.count} tensors, {len(self.items)} cost items, full step "
            f"{self.t_full / 1e3:.2f} ms, forward pass {self.t_forward / 1e3:.2f} ms, "
            f"batch size {self.batch_size}, device {self.device.get('name', 'unknown')!r})"
        )

    @cached_property
    def t_dw(self) -> np.ndarray:
        """Time that exists only because tensor k is trained; float64, shape (N,)."""
        return self._projection(alone=True)

    @cached_property
    def t_dy(self) -> np.ndarray:
        """Time that runs when the deepest trained tensor is k or earlier; float64, shape (N,).

        Work that several tensors need is charged to the last of them, so that the chain
        t_forward + sum(t_dw[mask]) + sum(t_dy[d:]) is never below `step_time(mask)`.
        """
        return self._projection(alone=False)

    @cached_property
    def t_full(self) -> float:
        """Time of the step that trains every tensor."""
        return self.t_forward + math.fsum(item.time for item in self.items)

    @cached_property
    def conditions(self) -> tuple[np.ndarray, np.ndarray]:
        """What the selector sees: the items with equal tensors merged.

        Members, bool (S, N): the tensors of each; and microseconds, float64 (S,). Read-only.
        """
        members, owners = np.unique(
            as_arrays(self.items, self.count)[0], axis=0, return_inverse=True
        )
        times = np.bincount(owners, [item.time for item in self.items], len(members))
        members.flags.writeable = times.flags.writeable = False
        return members, times

    def step_time(self, plan: Plan | np.ndarray) -> float:
        """Microseconds of one training step under a plan, or a bool mask of shape (N,).

        t_forward + sum of the times of the items that have a trained tensor. A kernel in another
        mode counts as an exact one.

        Raises:
            ValueError: `plan` is of another length or dtype.

        Source: Huang et al., ElasticTrainer, MobiSys 2023, Eq. (3), over items instead of a chain.
        """
        members, times = self.conditions
        mask = as_plan(plan, self.count).mask
        return self.t_forward + math.fsum(times[members[:, mask].any(axis=1)])

    def with_cached_prefix(
        self, fill: float = 0.0, held: np.ndarray | None = None
    ) -> TimingProfile:
        """The same times for steps that take cached activations; see `elastic_tf.Samples`.

        Forward work is then an item like any other: paid if a tensor before it is trained.

        Args:
            fill: passes that compute the activations / passes that take them, in [0, 1]: their
                cost, spread over the steps.
            held: True for the tensors before activations that are there already; bool, shape
                (N,). Work that depends on these alone is computed again only if one of them is
                trained.
        """
        arguments.number("fill", fill, low=0.0, high=1.0)
        has = np.zeros(self.count, bool) if held is None else held
        whole = tuple(np.flatnonzero(has).tolist())
        spared = []
        for item in self.prefix:
            spared.append(replace(item, time=item.time * (1.0 - fill)))
            if has[list(item.tensors)].all():
                spared.append(replace(item, time=item.time * fill, tensors=whole))
        left = max(self.t_forward - math.fsum(item.time for item in spared), 0.0)
        return replace(self, t_forward=left, items=(*self.items, *spared), prefix=())

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON; the file appears whole or not at all."""
        data = {"schema_version": SCHEMA_VERSION, **to_json(self)}
        for item in (*data["items"], *data["prefix"]):
            has = np.isin(np.arange(self.count), item["tensors"])
            item["tensors"] = to_ranges(has)
        write_json(arguments.path("path", path), {**data, "checksum": checksum(data)})

    @classmethod
    def load(cls, path: str | Path) -> TimingProfile:
        """Read a profile.

        Raises:
            FileNotFoundError: there is no file.
            ValueError: the file is not a profile that this version reads, or was changed.
        """
        data = _values(arguments.path("path", path))
        for item in (*data["items"], *data["prefix"]):
            has = from_ranges(item["tensors"], data["count"])
            item["tensors"] = tuple(np.flatnonzero(has).tolist())
        for name in ("items", "prefix"):
            data[name] = tuple(CostItem(**item) for item in data[name])
        specs = [{**one, "shape": tuple(one["shape"])} for one in data["tensors"]]
        data["tensors"] = tuple(TensorSpec(**spec) for spec in specs)
        data["input_shape"] = tuple(map(tuple, data["input_shape"]))
        data["calibration"] = tuple(data["calibration"])
        return cls(**{field.name: data[field.name] for field in dataclasses.fields(cls)})

    def check(self, model: Any, **data: Any) -> None:
        """Refuse to serve another elastic model, or other data: keywords of `check_data`.

        Raises:
            ValueError: something differs; the message names the first difference.

        Warns:
            UserWarning: measured on another device, under other settings or with another optimizer.
        """
        specs = tensor_specs(model)
        # not by name: Keras numbers the layers of a model that is built again
        found = [
            f"; first difference at {k}: {own} against {other}"
            for k, (own, other) in enumerate(itertools.zip_longest(self.tensors or specs, specs))
            if not (own and other) or (own.shape, own.dtype) != (other.shape, other.dtype)
        ]
        if found or self.count != len(specs):
            raise ValueError(
                f"The profile has {self.count} tensors, the model has {len(specs)}"
                f"{found[0] if found else ''}. {_REMEASURE}"
            )
        self.check_data(**data)
        here = {**_conditions(model), "optimizer": _optimizer_name(model)}
        there = {**self.device, "optimizer": self.optimizer or here["optimizer"]}
        told = [
            f"{key} {there[key]!r} against {here[key]!r}"
            for key in _COMPARED
            if there.get(key, here[key]) != here[key]
        ]
        if told:
            warnings.warn(
                f"The profile was measured elsewhere than this program runs: {', '.join(told)} "
                "here. The achieved ratio may be off. " + _REMEASURE,
                stacklevel=2,
            )

    def check_data(
        self,
        *,
        batch_size: int | None = None,
        input_shape: Sequence[Sequence[int | None]] | None = None,
    ) -> None:
        """Refuse another batch size, or another shape of one sample for each input, if given.

        Raises:
            ValueError: one differs.
        """
        if batch_size is not None and self.batch_size not in (0, batch_size):
            raise ValueError(
                "The profile must be measured at the batch size of training. Received: profile of "
                f"batch size {self.batch_size}, data of batch size {batch_size}. Batch the data "
                f"by {self.batch_size}, with drop_remainder=True, or profile with {batch_size} "
                "samples."
            )
        if input_shape is None or not self.input_shape:
            return
        import tensorflow as tf

        told = [tuple(shape) for shape in input_shape]
        may_be = tf.TensorShape.is_compatible_with
        fits = map(may_be, map(tf.TensorShape, told), self.input_shape)
        if len(told) != len(self.input_shape) or not all(fits):
            raise ValueError(
                "The profile must be measured at the input shape of training. Received: profile of "
                f"{list(self.input_shape)}, data of {told}. {_REMEASURE}"
            )

    def _projection(self, *, alone: bool) -> np.ndarray:
        members, times = self.conditions
        counted = (members.sum(axis=1) == 1) == alone
        projected = np.bincount(last_of(members)[counted], times[counted], self.count)
        projected.flags.writeable = False
        return projected


def checksum(data: Mapping[str, Any]) -> int:
    """CRC-32 of all other values, whatever their order and the white space between them."""
    values = {key: value for key, value in data.items() if key != "checksum"}
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def _values(path: str) -> dict[str, Any]:
    """What a file holds; errors as of `TimingProfile.load`."""
    try:
        data = arguments.instance("it", read_json(path), dict, "an object")
        version, stored, found = data.get("schema_version"), data.get("checksum"), checksum(data)
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"it has the version {brief(version)}, this library reads {SCHEMA_VERSION} alone"
            )
        if stored != found:
            raise ValueError(
                f"it is damaged: the checksum is {brief(stored)}, of its values {found}"
            )
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no timing profile '{path}'. " + _REMEASURE) from error
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error).rstrip(".")
        raise ValueError(f"'{path}' is no timing profile ({why}). {_REMEASURE}") from error
    return data


def as_arrays(items: Sequence[CostItem], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `count` tensors each item is paid for, bool (S, N), and its microseconds, (S,)."""
    members = np.zeros((len(items), count), bool)
    for row, item in zip(members, items):
        row[list(item.tensors)] = True
    return members, np.array([item.time for item in items], np.float64)


def last_of(members: np.ndarray) -> np.ndarray:
    """The last tensor of each set in `members`, bool (S, N)."""
    return members.shape[1] - 1 - members[:, ::-1].argmax(axis=1)


def tensor_specs(model: Any) -> tuple[TensorSpec, ...]:
    """Name, shape and dtype of each tensor of an elastic model, in forward order."""
    import tensorflow as tf

    arguments.elastic(model)
    return tuple(
        TensorSpec(v.name.split(":")[0], tuple(v.shape), tf.as_dtype(v.dtype).name)
        for v in model.tensors
    )


def described(model: Any, x: Any) -> dict[str, Any]:
    """Fields of a profile: the compiled model, its inputs in a batch, this machine, and now."""
    import tensorflow as tf

    inputs = tf.nest.flatten(x)
    return {
        "count": len(model.tensors),
        "tensors": tensor_specs(model),
        "input_shape": tuple(tuple(part.shape[1:]) for part in inputs),
        "batch_size": int(inputs[0].shape[0]),
        "optimizer": _optimizer_name(model),
        "device": _conditions(model),
        "created": now(),
    }


def _optimizer_name(model: Any) -> str:
    """Class name of the optimizer that updates the weights; loss scaling looked through."""
    return type(getattr(model.optimizer, "inner_optimizer", model.optimizer)).__name__


def _conditions(model: Any) -> dict[str, Any]:
    """The device, and whether XLA compiles the steps of the model."""
    return {**describe_device(), "xla": bool(model.jit_compile)}
