"""Updates of some channels of a kernel: the slice is a variable that the optimizer gets instead.

Before the update the slice is gathered from the kernel, and those of its slots likewise; after it
they are put back among the other channels, which keep every bit. The slice has the kernel's key:
whatever an optimizer holds once for a tensor, as a count of its steps, it has for all channels.

Channels that follow each other are cut out and joined in blocks; others are gathered number by
number, which TensorFlow does several times as slowly. Which of both is decided when a step is
traced: with tf.cond for each kernel and slot, traces took three times as long. Nothing is scattered
into a variable: each of its later reads and updates would copy it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack

_SLICES = "_elastic_slices"  # attribute of a kernel: its slices by their number of channels
_PARTS = "_elastic_parts"  # attribute of a kernel or slot: the variables that slices of it are in


class Slice:
    """Some channels along an axis of a kernel, always as many.

    Attributes:
        channels: int32 (count,), which ones in ascending order; a variable, so that others need no
            new trace.
        in_row: whether the next step is traced for channels that follow each other.
    """

    def __init__(self, kernel: tf.Variable, axis: int, count: int) -> None:
        self._kernel, self._axis, self._all = kernel, axis, kernel.shape[axis]
        self._count = count
        self.in_row = True
        self._shape = [*kernel.shape[:axis], count, *kernel.shape[axis + 1 :]]
        with tf.init_scope():
            self.channels = tf.Variable(tf.range(count), trainable=False)
            # of each channel among those of the kernel followed by those of the slice
            self._places = tf.Variable(tf.range(self._all), trainable=False)
        self._chosen: tuple[int, ...] = ()
        self.choose(tuple(range(count)))

    @classmethod
    def of(cls, kernel: tf.Variable, axis: int, count: int) -> Slice:
        """The one of so many channels; the same at each call."""
        known = vars(kernel).setdefault(_SLICES, {})
        if count not in known:
            known[count] = cls(kernel, axis, count)
        found: Slice = known[count]
        return found

    @property
    def variable(self) -> tf.Variable:
        """What gradients are taken for, and what is updated."""
        return self._part_of(self._kernel)

    def choose(self, channels: tuple[int, ...]) -> None:
        """Train these channels from the next step on."""
        if channels == self._chosen:
            return
        self._chosen = channels
        places = np.arange(self._all)
        places[list(channels)] = self._all + np.arange(len(channels))
        with tf.init_scope():
            self.channels.assign(list(channels))
            self._places.assign(places)

    def taken(self, whole: Any, axis: int, each: int = 1) -> tf.Tensor:
        """The channels of a tensor, of which each is so many numbers along an axis."""
        whole, channels = tf.convert_to_tensor(whole), tf.convert_to_tensor(self.channels)
        shape = whole.shape.as_list()
        shape[axis] = self._count * each
        if self.in_row:
            start, size = [0] * len(shape), [*tf.unstack(tf.shape(whole))]
            start[axis], size[axis] = channels[0] * each, self._count * each
            found = tf.slice(whole, start, size)
        else:
            places = tf.reshape(channels[:, None] * each + tf.range(each), (-1,))
            found = tf.gather(whole, places, axis=axis)
        found.set_shape(shape)  # known when a step is planned, too
        return tf.ensure_shape(found, shape)

    def gather(self, of: Sequence[tf.Variable]) -> None:
        """Fill the slices of these variables, of the kernel's shape."""
        for whole in of:
            self._part_of(whole).assign(self.taken(whole, self._axis))

    def put_back(self, of: Sequence[tf.Variable]) -> None:
        """Change the channels of these variables to what the slices are."""
        channels = tf.convert_to_tensor(self.channels)
        for variable in of:
            whole, part = variable.read_value(), self._part_of(variable).read_value()
            if self.in_row:
                sizes = tf.stack([channels[0], self._count, self._all - channels[0] - self._count])
                before, _, behind = tf.split(whole, sizes, self._axis)
                found = tf.concat([before, part, behind], self._axis)
            else:
                both = tf.concat([whole, part], self._axis)
                found = tf.gather(both, self._places, axis=self._axis)
            found.set_shape(whole.shape)
            variable.assign(tf.ensure_shape(found, whole.shape))

    def in_slots(self, slots: Sequence[Any]) -> list[Any]:
        """Slots, with slices for those of the kernel's shape; a ValueError if one has another."""
        for slot in slots:
            if slot.shape.rank and slot.shape != self._kernel.shape:
                raise ValueError(
                    "A channel can be trained alone where the optimizer keeps numbers of the "
                    f"kernel's shape. Received: '{slot.name}' of shape {tuple(slot.shape)} for "
                    f"'{self._kernel.name}' of shape {tuple(self._kernel.shape)}. Use another "
                    "optimizer, for instance Adam."
                )
        return [self._part_of(slot) if slot.shape.rank else slot for slot in slots]

    def _part_of(self, whole: tf.Variable) -> tf.Variable:
        known = vars(whole).setdefault(_PARTS, {})
        if self._count not in known:
            with tf.init_scope():
                zeros = tf.zeros(self._shape, whole.dtype)
                known[self._count] = tf.Variable(
                    zeros, trainable=False, name=whole.name.split(":")[0]
                )
            known[self._count]._unique_id = whole._unique_id  # by which optimizers find slots
        return known[self._count]


def sliced(variable: tf.Variable, gradient: Any) -> Slice | None:
    """The slice of a kernel that a gradient is for, by its shape; None if it is for the whole."""
    for found in vars(variable).get(_SLICES, {}).values():
        if gradient.shape == found.variable.shape:
            return found
    return None


def make(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Make the variables of all slices, before a step is traced."""
    for variable in variables:
        for found in vars(variable).get(_SLICES, {}).values():
            found.in_slots([variable])
            # an optimizer that cannot update channels is refused by a step that does
            with contextlib.suppress(ValueError), _swapped(optimizer, variable, found):
                pass


@contextlib.contextmanager
def standing_in(
    optimizer: Any, pairs: Sequence[tuple[Any, tf.Variable]]
) -> Iterator[list[tuple[Any, tf.Variable]]]:
    """Gradients and variables for `apply_gradients`, slices in the place of kernels and slots."""
    taken: list[tuple[Slice, list[tf.Variable]]] = []
    given: list[tuple[Any, tf.Variable]] = []
    with contextlib.ExitStack() as swapped:
        for gradient, variable in pairs:
            found = sliced(variable, gradient)
            given.append((gradient, variable if found is None else found.variable))
            if found is not None:
                slots = swapped.enter_context(_swapped(optimizer, variable, found))
                taken.append((found, [variable, *slots]))
                found.gather([variable, *slots])
        yield given
    for found, wholes in taken:
        found.put_back(wholes)


@contextlib.contextmanager
def _swapped(optimizer: Any, kernel: tf.Variable, found: Slice) -> Iterator[list[tf.Variable]]:
    """Let the optimizer find slices where it has the slots of a kernel; gives these slots."""
    index = stack.index_of(optimizer, kernel)
    common = getattr(optimizer, "of_all_channels", ())
    found_lists = stack.slot_lists(optimizer, index)
    lists = {name: value for name, value in found_lists.items() if name not in common}
    slots = [stack.raw(value[index]) for value in lists.values()]
    swapped = {
        name: [*value[:index], part, *value[index + 1 :]]
        for (name, value), part in zip(lists.items(), found.in_slots(slots))
    }
    with stack.attributes(optimizer, **swapped):
        yield [slot for slot in slots if slot.shape.rank and slot is not kernel]
