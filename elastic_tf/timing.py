"""The timing profile: what training each tensor costs on one device, as data and as a file."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.device import describe_device
from elastic_tf.files import write_json

SCHEMA_VERSION = 1
_MAX_TENSORS = 100_000  # a file that claims more is not a profile
_REMEASURE = "Profile this model again with profiling/profile_device.py."


class TensorSpec(NamedTuple):
    """Name, shape and dtype of a trainable tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


class DependencySet(NamedTuple):
    """Backward and update work that runs when at least one of `tensors` is trained.

    Attributes:
        tensors: indices in forward order, ascending.
        time: microseconds per step.
    """

    tensors: tuple[int, ...]
    time: float


@dataclasses.dataclass(frozen=True, eq=False)
class TimingProfile:
    """Times of one training step on one device, split by the tensors that cause them.

    Times are microseconds per step; arrays have shape (N,) and run in forward order.

    Attributes:
        t_forward: a step that trains nothing: forward pass, loss and metrics.
        sets: the backward pass and the update, by the tensors that need them.
        count: number of tensors N.
        tensors: the model's tensors; empty for a profile made from a table.
        op_count: ops of the executed full step.
        input_shape: shape of one sample, for each input.
        batch_size: samples in a step.
        optimizer: class name of the optimizer, whose update is part of the step.
        device: what `describe_device` said where it was measured.
        method: "profiler" (op times, scaled to the clock) or "table" (given by hand).
        repeats: timed steps behind each median.
        spread: relative half-width of the middle half of the measured full step times.
        share_attributed: share of the measured op time outside the forward pass that belongs to a
            dependency set.
        created: date and time, ISO 8601.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 2.2 and 5.
    """

    t_forward: float
    sets: tuple[DependencySet, ...]
    count: int
    tensors: tuple[TensorSpec, ...] = ()
    op_count: int = 0
    input_shape: tuple[tuple[int | None, ...], ...] = ()
    batch_size: int = 0
    optimizer: str = ""
    device: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    method: str = "table"
    repeats: int = 0
    spread: float = 0.0
    share_attributed: float = 1.0
    created: str = ""

    @classmethod
    def from_chain(
        cls, *, t_dw: Sequence[float], t_dy: Sequence[float], t_forward: float
    ) -> TimingProfile:
        """A profile from a table of t_dw and t_dy alone, for tests and what-if studies.

        Args:
            t_dw: microseconds that exist only because tensor k is trained; shape (N,).
            t_dy: microseconds that run when the deepest trained tensor is k or earlier; shape (N,).
            t_forward: microseconds of the forward pass.

        Raises:
            ValueError: lengths differ, or a time is negative or not finite.
        """
        dw, dy = np.asarray(t_dw, np.float64), np.asarray(t_dy, np.float64)
        if dw.ndim != 1 or dw.shape != dy.shape or not len(dw):
            raise ValueError(
                "`t_dw` and `t_dy` must be one-dimensional, of one length of at least 1. "
                f"Received: shapes {dw.shape} and {dy.shape}."
            )
        for name, times in (("t_dw", dw), ("t_dy", dy), ("t_forward", np.array([t_forward]))):
            if not (np.isfinite(times).all() and (times >= 0).all()):
                raise ValueError(
                    f"`{name}` must be finite and at least 0. Received: "
                    f"{times[~(np.isfinite(times) & (times >= 0))][0]}."
                )
        own = [DependencySet((k,), float(time)) for k, time in enumerate(dw) if time > 0]
        shared = [
            DependencySet(tuple(range(k + 1)), float(time)) for k, time in enumerate(dy) if time > 0
        ]
        return cls(t_forward=float(t_forward), sets=tuple(own + shared), count=len(dw))

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

    @property
    def t_full(self) -> float:
        """Time of the step that trains every tensor."""
        return self.t_forward + math.fsum(group.time for group in self.sets)

    @property
    def t_backward(self) -> float:
        """Time of the backward pass and the update of every tensor."""
        return self.t_full - self.t_forward

    def step_time(self, mask: np.ndarray) -> float:
        """Time of one training step that trains only the tensors where `mask` is True.

        t_forward + sum of the times of the dependency sets that hold a trained tensor.

        Args:
            mask: bool, shape (N,), forward order.

        Returns:
            Microseconds per step, at least `t_forward`.

        Raises:
            ValueError: `mask` is of another length or dtype.

        Source: Huang et al., ElasticTrainer, MobiSys 2023, Eq. (3), over sets instead of a chain.
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (self.count,):
            raise ValueError(
                f"`mask` must be a bool array of shape ({self.count},). "
                f"Received: {mask.dtype} of shape {mask.shape}."
            )
        runs = self._members[:, mask].any(axis=1)
        return self.t_forward + math.fsum(self._set_times[runs])

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON; the file appears whole or not at all."""
        data = dataclasses.asdict(self)
        data["sets"] = [{"tensors": _ranges(s.tensors), "time": s.time} for s in self.sets]
        data.update(
            schema_version=SCHEMA_VERSION,
            tensors=[spec._asdict() for spec in self.tensors],
            t_full=self.t_full,
            t_dw=self.t_dw.tolist(),
            t_dy=self.t_dy.tolist(),
        )
        write_json(path, data)

    @classmethod
    def load(cls, path: str | Path) -> TimingProfile:
        """Read a profile and check every field.

        Raises:
            FileNotFoundError: there is no file.
            ValueError: the file is not a profile of this version; the message names the field.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"A timing profile must be a JSON file. Received: '{path}', which is not: {error}. "
                + _REMEASURE
            ) from error
        return _parse(data, path)

    def check(
        self,
        model: Any,
        *,
        batch_size: int | None = None,
        input_shape: Sequence[Sequence[int | None]] | None = None,
    ) -> None:
        """Refuse to serve another model, batch size or input shape.

        Args:
            model: an elastic model.
            batch_size: samples in a step, if known.
            input_shape: shape of one sample for each input, if known.

        Raises:
            ValueError: something differs; the message names the first difference.

        Warns:
            UserWarning: measured on another device, or with another optimizer.
        """
        if self.tensors:
            self._check_tensors(tensor_specs(model))
        elif self.count != len(model.tensors):
            raise ValueError(
                f"The profile has {self.count} tensors, the model has {len(model.tensors)}. "
                + _REMEASURE
            )
        if batch_size is not None and self.batch_size and batch_size != self.batch_size:
            raise ValueError(
                f"The profile must be measured at the batch size of training. Received: profile "
                f"of batch size {self.batch_size}, data of batch size {batch_size}. " + _REMEASURE
            )
        if input_shape is not None and self.input_shape:
            received = tuple(tuple(shape) for shape in input_shape)
            if not _compatible(received, self.input_shape):
                raise ValueError(
                    "The profile must be measured at the input shape of training. Received: "
                    f"profile of {_shapes(self.input_shape)}, data of {_shapes(received)}. "
                    + _REMEASURE
                )
        self._warn_of_differences(model)

    def _check_tensors(self, specs: Sequence[TensorSpec]) -> None:
        if list(specs) == list(self.tensors):
            return
        pairs = zip(self.tensors, specs)
        at = next((k for k, (own, other) in enumerate(pairs) if own != other), None)
        if at is None:
            at = min(len(specs), len(self.tensors))
        own, other = (str(s[at]) if at < len(s) else "nothing" for s in (self.tensors, specs))
        raise ValueError(
            f"The profile has {len(self.tensors)} tensors, the model has {len(specs)}; first "
            f"difference at {at}: {own} in the profile against {other}. " + _REMEASURE
        )

    def _warn_of_differences(self, model: Any) -> None:
        here = describe_device()
        there = self.device.get("name")
        if there and there != here["name"]:
            warnings.warn(
                f"The profile was measured on '{there}', this is '{here['name']}': the achieved "
                "ratio may be off. " + _REMEASURE,
                stacklevel=3,
            )
        optimizer = optimizer_name(model)
        if self.optimizer and optimizer != self.optimizer:
            warnings.warn(
                f"The profile was measured with {self.optimizer}, the model trains with "
                f"{optimizer}: the time of the update differs. " + _REMEASURE,
                stacklevel=3,
            )

    @cached_property
    def _members(self) -> np.ndarray:
        """(S, N) bool: which set holds which tensor."""
        members = np.zeros((len(self.sets), self.count), bool)
        for row, group in zip(members, self.sets):
            row[list(group.tensors)] = True
        return members

    @cached_property
    def _set_times(self) -> np.ndarray:
        return np.array([group.time for group in self.sets], np.float64)

    def _projection(self, *, alone: bool) -> np.ndarray:
        times = np.zeros(self.count)
        for group in self.sets:
            if (len(group.tensors) == 1) == alone:
                times[group.tensors[-1]] += group.time
        times.flags.writeable = False
        return times


def tensor_specs(model: Any) -> tuple[TensorSpec, ...]:
    """Name, shape and dtype of each tensor of an elastic model, in forward order."""
    return tuple(
        TensorSpec(v.name.split(":")[0], tuple(v.shape), tf.as_dtype(v.dtype).name)
        for v in model.tensors
    )


def optimizer_name(model: Any) -> str:
    """Class name of the optimizer that updates the weights; loss scaling looked through."""
    optimizer = getattr(model, "optimizer", None)
    return type(getattr(optimizer, "inner_optimizer", optimizer)).__name__


def _compatible(one: Sequence[Sequence[int | None]], other: Sequence[Sequence[int | None]]) -> bool:
    """Whether the shapes agree wherever both are known."""
    return len(one) == len(other) and all(
        len(a) == len(b) and all(None in (m, n) or m == n for m, n in zip(a, b))
        for a, b in zip(one, other)
    )


def _shapes(shapes: Sequence[Sequence[int | None]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


def _ranges(indices: Sequence[int]) -> list[list[int]]:
    """Ascending indices as [first, last] runs, both included."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return runs


def _parse(data: Any, path: str | Path) -> TimingProfile:
    """A profile from what the file held; raises ValueError naming the first bad field."""
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ValueError(f"'{path}' is not a timing profile. " + _REMEASURE)
    if data["schema_version"] != SCHEMA_VERSION:
        raise ValueError(
            f"'{path}' is a timing profile of version {data['schema_version']!r}, this library "
            f"reads version {SCHEMA_VERSION}. " + _REMEASURE
        )
    field = _Fields(data, path)
    count = field.integer("count", 1, _MAX_TENSORS)
    tensors = tuple(
        TensorSpec(
            field.text(item, "tensors", "name"),
            field.shape(item.get("shape"), "tensors"),
            field.text(item, "tensors", "dtype"),
        )
        for item in field.objects("tensors", optional=True)
    )
    if tensors and len(tensors) != count:
        field.refuse("tensors", f"{len(tensors)} entries, `count` is {count}")
    sets = tuple(
        DependencySet(
            field.indices(item.get("tensors"), count), field.number(item.get("time"), "sets")
        )
        for item in field.objects("sets")
    )
    profile = TimingProfile(
        t_forward=field.number(data.get("t_forward"), "t_forward"),
        sets=sets,
        count=count,
        tensors=tensors,
        op_count=field.integer("op_count", 0, 10**9),
        input_shape=tuple(
            field.shape(shape, "input_shape") for shape in field.items("input_shape")
        ),
        batch_size=field.integer("batch_size", 0, 10**9),
        optimizer=field.text(data, "optimizer"),
        device=field.mapping("device"),
        method=field.text(data, "method"),
        repeats=field.integer("repeats", 0, 10**9),
        spread=field.number(data.get("spread"), "spread"),
        share_attributed=field.number(data.get("share_attributed"), "share_attributed"),
        created=field.text(data, "created"),
    )
    for name in ("t_dw", "t_dy"):
        stored = [field.number(time, name) for time in field.items(name)]
        if not np.allclose(stored, getattr(profile, name), rtol=1e-6, atol=1e-6):
            field.refuse(name, "times that the sets do not add up to")
    return profile


class _Fields:
    """Typed access to the fields of a file that anybody may have written."""

    def __init__(self, data: dict[str, Any], path: str | Path) -> None:
        self.data = data
        self.path = path

    def refuse(self, name: str, received: str) -> Any:
        raise ValueError(
            f"'{self.path}' is a damaged timing profile: `{name}` holds {received}. " + _REMEASURE
        )

    def number(self, value: Any, name: str) -> float:
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or value < 0:
            self.refuse(name, f"{value!r}, not a finite number of at least 0")
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.data.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(name, f"{value!r}, not an integer from {low} to {high}")
        return int(value)

    def text(self, owner: Any, name: str, key: str | None = None) -> str:
        value = owner.get(key or name)
        if not isinstance(value, str):
            self.refuse(name, f"{value!r}, not a text")
        return str(value)

    def items(self, name: str) -> list[Any]:
        value = self.data.get(name)
        if not isinstance(value, list):
            self.refuse(name, f"{value!r}, not a list")
        return list(value)

    def objects(self, name: str, *, optional: bool = False) -> list[dict[str, Any]]:
        items = self.items(name)
        if not (items or optional) or not all(isinstance(item, dict) for item in items):
            self.refuse(name, "something else than a list of objects")
        return items

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.data.get(name)
        if not isinstance(value, dict):
            self.refuse(name, f"{value!r}, not an object")
        return dict(value)

    def shape(self, value: Any, name: str) -> tuple[int | None, ...]:
        sizes = value if isinstance(value, list) else [False]
        if not all(s is None or (isinstance(s, int) and s is not False and s >= 0) for s in sizes):
            self.refuse(name, f"the shape {value!r}")
        return tuple(sizes)

    def indices(self, value: Any, count: int) -> tuple[int, ...]:
        """Indices from [first, last] runs, ascending and below `count`."""
        indices: list[int] = []
        for run in value if isinstance(value, list) else [None]:
            whole = isinstance(run, list) and len(run) == 2 and all(type(i) is int for i in run)
            if not whole or not (indices[-1] if indices else -1) < run[0] <= run[1] < count:
                self.refuse("sets", f"the tensors {value!r} of {count}")
            indices.extend(range(run[0], run[1] + 1))
        if not indices:
            self.refuse("sets", "a set without tensors")
        return tuple(indices)
