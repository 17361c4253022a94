"""A plan: how each tensor of a model is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief

FROZEN = 0  # keeps every bit, and so do its slots
EXACT = 1  # trained as plain Keras trains it
# Kernels of convolutions, trained by gradients of patches of so many pixels a side.
FILTERED = {2: 2, 4: 4, 7: 7}
# Kernels of which some output channels are trained, a share or any number: a plan says which.
SOME = 11
CHANNELS = {SOME, 12, 14, 18}
# Of every mode; `elastic_tf.train.engine.modes.register` adds more.
NAMES = {
    FROZEN: "frozen",
    EXACT: "exact",
    **{mode: f"filtered:{r}" for mode, r in FILTERED.items()},
    SOME: "channels:any",
    **{mode: f"channels:1/{mode - 10}" for mode in sorted(CHANNELS - {SOME})},
}


@dataclass(frozen=True, eq=False)
class Plan:
    """How each tensor of a model is trained: a mode per tensor, in forward order.

    Plans are values: equal if modes and channels are equal, usable as keys, and never changed.

    Args:
        modes: of each tensor, a key of `elastic_tf.plan.NAMES`; int8, shape (N,), read-only.
        channels: of each tensor of which some channels are trained, by its index: these channels,
            in ascending order.
    """

    modes: np.ndarray
    channels: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = arguments.array("modes", self.modes)
        modes = given.astype(np.int8) if given.dtype.kind in "iu" else np.zeros(0, np.int8)
        if modes.ndim != 1 or not modes.size or not np.isin(given, list(NAMES)).all():
            known = ", ".join(f"{mode} ({name})" for mode, name in NAMES.items())
            raise ValueError(
                f"`modes` must be one of {known} for each tensor. Received: {given.dtype} of shape "
                f"{given.shape}: {brief(self.modes)}. Make a plan of a mask with Plan.from_mask."
            )
        modes.flags.writeable = False
        object.__setattr__(self, "modes", modes)
        chosen = {int(k): _channels(self.channels[k]) for k in sorted(self.channels)}
        needed = np.flatnonzero(np.isin(modes, list(CHANNELS))).tolist()
        if [*chosen] != needed:
            raise ValueError(
                "`channels` must be given for each tensor of which some are trained, and for no "
                f"other. Received: those of tensors {[*chosen]}, for modes that need them at "
                f"{needed}. Make such a plan with Plan.with_channels."
            )
        object.__setattr__(self, "channels", MappingProxyType(chosen))

    @classmethod
    def from_mask(cls, mask: np.ndarray) -> Plan:
        """Exact where `mask` is True, frozen elsewhere; bool, shape (N,), forward order."""
        return cls(np.where(arguments.mask("mask", mask, np.size(mask)), EXACT, FROZEN))

    @classmethod
    def full(cls, count: int) -> Plan:
        """All of `count` tensors exact."""
        return cls(np.full(count, EXACT))

    @classmethod
    def from_json(cls, value: Any) -> Plan:
        """The plan that `to_json` wrote; a `ValueError` for anything else."""
        if not isinstance(value, dict) or "modes" not in value:
            raise ValueError(
                f"A plan in JSON must be an object with `modes`. Received: {brief(value)}. "
                "Plan.to_json writes one."
            )
        return cls(value["modes"], {int(k): v for k, v in value.get("channels", {}).items()})

    def filtered(self, r: int, where: np.ndarray) -> Plan:
        """The same, but filtered gradients (Yang et al., CVPR 2023) for some kernels.

        Args:
            r: side of a patch in pixels of the convolution's output: 2, 4 or 7.
            where: True for these kernels; bool, shape (N,).
        """
        return self.with_mode(f"filtered:{r}", where)

    def with_mode(self, name: str, where: np.ndarray) -> Plan:
        """The same, but a mode that is known by its name for some tensors.

        Args:
            name: one of `elastic_tf.plan.NAMES` that needs no channels.
            where: True for these tensors; bool, shape (N,).
        """
        modes = np.where(arguments.mask("where", where, len(self)), code_of(name), self.modes)
        return Plan(modes, {k: v for k, v in self.channels.items() if not where[k]})

    def with_channels(self, name: str, channels: Mapping[int, Sequence[int]]) -> Plan:
        """The same, but of some kernels a share of the output channels alone.

        Args:
            name: "channels:1/2", "channels:1/4" or "channels:1/8"; or "channels:any", of which each
                number of channels is a trace of its own.
            channels: the channels of each kernel, by its index among the tensors.
        """
        modes = self.modes.copy()
        for k in channels:
            arguments.count("channels", k, least=0, most=len(self) - 1)
        modes[list(channels)] = code_of(name)
        return Plan(modes, {**self.channels, **channels})

    def to_json(self) -> dict[str, Any]:
        """The plan as a value that `json.dump` takes."""
        channels = {str(k): list(chosen) for k, chosen in self.channels.items()}
        return {"modes": self.modes.tolist(), **({"channels": channels} if channels else {})}

    @property
    def traced(self) -> bytes:
        """What a traced step depends on: modes, and counts of channels."""
        counts = np.array([len(chosen) for chosen in self.channels.values()], np.int32)
        return self.modes.tobytes() + counts.tobytes()

    @cached_property
    def mask(self) -> np.ndarray:
        """True where a tensor is trained; bool, shape (N,), read-only."""
        mask = self.modes != FROZEN
        mask.flags.writeable = False
        return mask

    def __len__(self) -> int:
        return len(self.modes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Any, ...]:
        # an array that is unpickled could be written to
        return Plan, (self.modes, dict(self.channels))

    @cached_property
    def _value(self) -> tuple[Any, ...]:
        return self.modes.tobytes(), tuple(self.channels.items())


def code_of(name: str) -> int:
    """The code of the mode of that name."""
    arguments.choice("name", name, NAMES.values())
    return next(code for code, known in NAMES.items() if known == name)


def _channels(given: Any) -> tuple[int, ...]:
    """Numbers of channels, in ascending order."""
    found = arguments.array("channels", given)
    is_set = found.dtype.kind in "iu" and found.ndim == 1 and len(np.unique(found)) == len(found)
    if not is_set or not found.size or found.min() < 0:
        raise ValueError(
            "`channels` must be different integers from 0 for each tensor. Received: "
            f"{brief(given)}. Convert a mask with np.flatnonzero."
        )
    return tuple(np.sort(found).tolist())


def layers_of(model: Any) -> list[Any]:
    """The layer that owns each tensor of an elastic model, or the model itself; forward order."""
    from elastic_tf import stack  # loads TensorFlow

    owners = {
        id(tensor): layer
        for layer in model._flatten_layers()
        for tensor in stack.own_variables(layer)[0]
    }
    return [owners.get(id(tensor), model) for tensor in model.tensors]


def describe_trained(plan: Plan | None, tensors: Sequence[Any]) -> str:
    """How much of `tensors`, of which each has a shape, a plan trains; None: everything."""
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    mask = np.ones(len(sizes), bool) if plan is None else plan.mask
    some = f", of {len(plan.channels)} some channels" if plan and plan.channels else ""
    return (
        f"trains {np.sum(mask)} of {len(sizes)} tensors{some}, {np.dot(sizes, mask):,} of "
        f"{sum(sizes):,} parameters"
    )


def as_plan(value: Plan | np.ndarray | None, count: int) -> Plan:
    """The plan that `value` is or means, for a model of `count` tensors.

    That is a plan; a bool mask of shape (count,), True where a tensor is trained; or None for
    everything exact. Anything else is a `ValueError`.
    """
    if value is None:
        return Plan.full(count)
    if not isinstance(value, Plan):
        hint = "Convert indices with np.isin(np.arange(N), indices). model.tensors has the order."
        return Plan.from_mask(arguments.mask("mask", value, count, hint=hint))
    if len(value) != count:
        raise ValueError(
            f"`plan` must have a mode for each of {count} tensors. Received: one for {len(value)}: "
            f"{brief(value)}. See model.tensors for the order."
        )
    return value
