"""Apply an optimizer to some tensors: everything it promises, for them alone.

Keras optimizers, also inside a `LossScaleOptimizer`, update only what they are given. The slots of
all tensors are made at the start, in the order of a plain model's optimizer, so that the state is
interchangeable and a tensor can come and go.

Adam divides its moments by `1 - beta ** t`, t the optimizer's steps so far. The moments of a tensor
that joins late begin at zero all the same: its first hundred steps would be three to seven times
too long. Here t is the number of steps that the tensor itself took part in. The steps that it
missed are kept, so that the state of a plain optimizer, which has no such count, is one of tensors
that missed none. They are saved with the optimizer's variables in every format.

Source: Kingma & Ba, Adam, ICLR 2015, Sec. 3 (why moments are corrected).

**Some channels.** To update some channels of a kernel, a slice of it is a variable that the
optimizer gets instead. Before the update it is gathered from the kernel, and those of its slots
likewise; after it they are put back among the other channels, which keep every bit. The slice has
the kernel's key: whatever an optimizer holds once for a tensor, as a count of its steps, it has for
all channels. Nothing is scattered into
a variable: each of its later reads and updates would copy it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.arguments import brief

_MISSED = "missed_steps"  # attribute of an optimizer: of each tensor, int64, shape (tensors,)


def check(optimizer: Any) -> None:
    """Raise a TypeError unless `optimizer` is of one of the kinds above."""
    if not isinstance(stack.unwrapped(optimizer), tf.keras.optimizers.Optimizer):
        advice = "Use for instance elastic_tf.train.optimizers.sgdw(1e-3)."
        if optimizer is None:
            advice = "Compile the model first: model.compile(optimizer=..., loss=...)."
        raise TypeError(
            "`optimizer` must be one `tf.keras.optimizers.Optimizer` or `LossScaleOptimizer`: only "
            "their slots can be kept for the tensors left out. Received: "
            f"{brief(optimizer)} of type {type(optimizer).__name__}. {advice}"
        )
    inner = stack.unwrapped(optimizer)
    for name in ("use_ema", "gradient_accumulation_steps"):
        if getattr(inner, name, None):
            raise TypeError(
                "`optimizer` must keep neither moving averages of weights nor sums of gradients: "
                "those of tensors that are left out would go wrong. Received: "
                f"{name}={getattr(inner, name)}. Leave it out."
            )


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the slots of all `variables`, as the first step of a plain model would.

    Slots that are there stay. `variables` are in the order of `model.trainable_variables`.

    Raises:
        TypeError: `check` does not admit the optimizer.
        ValueError: the optimizer was built before, over other tensors.
    """
    check(optimizer)
    stack.build_optimizer(optimizer, variables)
    inner, tensors = stack.unwrapped(optimizer), [stack.raw(variable) for variable in variables]
    for variable in tensors:
        if stack.index_of(inner, variable) is None:
            raise ValueError(
                "The optimizer must be built over all trainable tensors of the model. Received: "
                f"an optimizer built over other tensors, without '{variable.name}'. Compile the "
                "model with a new optimizer."
            )
    with tf.init_scope():
        if _corrects(inner) and not hasattr(inner, _MISSED):
            zeros = tf.zeros(len(tensors), tf.int64)
            stack.keep_with(inner, _MISSED, tf.Variable(zeros, trainable=False, name=_MISSED))
    _make_slices(inner, tensors)


def gradients(
    optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    """Gradients of a scalar `loss`, scaled in `tape` as the optimizer wants, unscaled after.

    None where the loss does not depend on a variable.
    """
    return stack.differentiated(optimizer, tape, loss, [stack.raw(one) for one in variables])


def apply_selected(
    optimizer: Any,
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
    variables: Sequence[tf.Variable],
) -> None:
    """Update `variables` only: everything `apply_gradients` promises, for them alone.

    Clipping sees the given gradients only; weight decay and constraints touch the given variables
    only. A variable whose gradient is None is left alone; with no other variables
    this does nothing, `iterations` included. A gradient of the shape of a kernel's slice updates
    these channels alone. The optimizer was built over all tensors by `build`.
    """
    pairs = [(one, stack.raw(v)) for one, v in zip(gradients, variables) if one is not None]
    if pairs:
        inner, chosen = stack.unwrapped(optimizer), [variable for _, variable in pairs]
        with _standing_in(inner, pairs) as given, _counting(inner, chosen):
            with stack.never_differentiated():
                stack.apply_gradients(optimizer, given)


@contextlib.contextmanager
def _counting(optimizer: Any, variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Let each of `variables` have its own step count in the updates made in this context."""
    missed = getattr(optimizer, _MISSED, None)
    if missed is None:
        yield
        return
    iterations, update_step = optimizer._iterations, optimizer.update_step

    def update_one(gradient: Any, variable: tf.Variable, *rate: Any) -> None:
        index = stack.index_of(optimizer, variable)
        own = {} if common is None else {"_common": common[index]}
        with stack.attributes(optimizer, _iterations=taken_part[index], **own):
            update_step(gradient, variable, *rate)

    taken = {stack.index_of(optimizer, variable) for variable in variables}
    left_out = [int(index not in taken) for index in range(missed.shape[0])]
    before = tf.identity(stack.raw(iterations))
    steps = before - missed
    taken_part = tf.unstack(steps)  # ops of their own for each take long to trace
    common = optimizer.in_common(steps) if hasattr(optimizer, "in_common") else None
    with stack.attributes(optimizer, update_step=update_one):
        yield
    if any(left_out):
        # a step that Keras 3 leaves out for its loss scale does not count
        made = tf.identity(stack.raw(iterations)) - before
        missed.assign_add(made * tf.constant(left_out, tf.int64))


def _corrects(optimizer: Any) -> bool:
    """Whether it uses the count for nothing else; other kinds have `in_common`."""
    kinds = [kind.update_step for kind in stack.CORRECTS_MOMENTS]
    return type(optimizer).update_step in kinds or hasattr(optimizer, "in_common")


_SLICES = "_elastic_slices"  # attribute of a kernel: its slices by their number of channels
_PARTS = "_elastic_parts"  # attribute of a kernel or slot: the variables that slices of it are in


class Slice:
    """Some channels along an axis of a kernel, always as many.

    Attributes:
        channels: int32 (count,), which ones in ascending order; a variable, so that others need no
            new trace.
    """

    def __init__(self, kernel: tf.Variable, axis: int, count: int) -> None:
        self._kernel, self._axis, self._all = kernel, axis, kernel.shape[axis]
        self._count = count
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
        for variable in of:
            whole, part = variable.read_value(), self._part_of(variable).read_value()
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


def _make_slices(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Make the variables of all slices, before a step is traced."""
    for variable in variables:
        for found in vars(variable).get(_SLICES, {}).values():
            found.in_slots([variable])
            # an optimizer that cannot update channels is refused by a step that does
            with contextlib.suppress(ValueError), _swapped(optimizer, variable, found):
                pass


@contextlib.contextmanager
def _standing_in(
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
