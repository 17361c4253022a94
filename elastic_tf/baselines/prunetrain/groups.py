"""Channels of a network that can only be removed together.

Every channel between two layers carries a label; what has one label in the end is one channel to
keep or to remove, with all the weights that belong to it. A convolution or dense layer gives new
labels. Any other layer hands its labels on if it is seen to work on each channel alone: the layer,
made anew without some channels, has to give the same numbers for the others. Where no guess stands
this test, the channels that the layer sees stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from elastic_tf.baselines import graph

L = tf.keras.layers

# Layers that make channels, and the config key that counts them; the kernel is (..., in, out).
_MAKERS = {L.Conv1D: "filters", L.Conv2D: "filters", L.Conv3D: "filters", L.Dense: "units"}
# Layers with weights for each channel alone: along the last axis but one of kernels.
_EACH = (L.BatchNormalization, L.DepthwiseConv1D, L.DepthwiseConv2D)

_SIZE = 16  # of an axis that the model leaves open, in the test
_TOLERANCE = 1e-3  # of the largest number: half precision passes, a wrong guess is far off


class Along(NamedTuple):
    """Channels along one axis of a weight."""

    weight: int  # index in `layer.weights`
    axis: int
    labels: np.ndarray  # int, shape (size,)
    is_group: bool  # of the group lasso: those of kernels


class Site(NamedTuple):
    """The channels of one layer."""

    along: tuple[Along, ...]  # where they stand in its weights
    width: tuple[str, np.ndarray] | None  # key in the layer's config, and the labels it counts

    def arrays(self) -> Iterator[np.ndarray]:
        """All labels, array by array."""
        yield from (one.labels for one in self.along)
        if self.width is not None:
            yield self.width[1]

    def changes(self, layer: Any, keep: np.ndarray) -> dict[str, Any]:
        """What changes in the layer's config where only the labels in `keep` stay."""
        if self.width is None:
            return {}
        key, labels = self.width
        left = int(keep[labels].sum())
        return {key: left if key != "target_shape" else (*layer.target_shape[:-1], left)}

    def cut(self, weight: int, value: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """The part of a weight, or of what has its shape, that stays."""
        for where, axis, labels, _ in self.along:
            if where == weight:
                value = np.compress(keep[labels], value, axis=axis)
        return value

    def relabelled(self, change: Callable[[np.ndarray], np.ndarray]) -> Site:
        """The same with other labels."""
        along = tuple(one._replace(labels=change(one.labels)) for one in self.along)
        return Site(along, self.width and (self.width[0], change(self.width[1])))


class Channels(NamedTuple):
    """Channels of a network."""

    pinned: np.ndarray  # True at labels whose channels stay; bool, shape (labels,)
    sites: Mapping[str, Site]  # of every layer, by its name

    def kept(self, keep: np.ndarray) -> Channels:
        """The channels that stay, by the same labels."""
        sites = {
            name: site.relabelled(lambda labels: labels[keep[labels]])
            for name, site in self.sites.items()
        }
        return Channels(self.pinned, sites)


class _Guess(NamedTuple):
    """How a layer may deal with channels; labels are local, from 0."""

    taken: list[np.ndarray]  # labels of each input
    made: np.ndarray | None  # of the output; None: the output's channels stay
    site: Site


def channel_groups(network: tf.keras.Model) -> Channels:
    """Follow the channels of a functional model from its inputs to its outputs."""
    count = 0
    equal = [(np.zeros(0, int), np.zeros(0, int))]
    pinned: list[np.ndarray] = []
    sites: dict[str, Site] = {}
    known: dict[int, np.ndarray] = {}  # labels by id of the tensor

    def new(width: int) -> np.ndarray:
        nonlocal count
        count += width
        return np.arange(count - width, count)

    for node in graph.nodes(network):
        taken = [known[id(tensor)] for tensor in node.keras_inputs]
        made = tf.nest.flatten(node.outputs)
        guess, site, out = None, Site((), None), None
        if not node.is_input and len(made) == 1:
            guesses = _guesses(node.layer, [len(labels) for labels in taken], _width(made[0]))
            guess = next((one for one in guesses if _holds(one, node)), None)
        if guess is None:
            pinned += taken
        else:
            label = new(1 + max(local.max() for local in _locals(guess)))  # of each local one
            equal += [(label[local], seen) for local, seen in zip(guess.taken, taken)]
            site = guess.site.relabelled(label.__getitem__)
            out = None if guess.made is None else label[guess.made]
        for tensor in made:
            if out is None:
                pinned.append(new(_width(tensor)))
            known[id(tensor)] = pinned[-1] if out is None else out
        earlier = sites.setdefault(node.layer.name, site)
        ones, others = list(earlier.arrays()), list(site.arrays())
        if [len(one) for one in ones] == [len(other) for other in others]:
            equal += zip(ones, others)  # a layer that is called again has one set of channels
        else:
            pinned += ones + others
    pinned += [known[id(tensor)] for tensor in tf.nest.flatten(network.outputs)]

    one, other = (np.concatenate([pair[side] for pair in equal]) for side in (0, 1))
    _, root = connected_components(coo_array((np.ones(len(one)), (one, other)), (count, count)))
    stays = np.zeros(root.max() + 1, bool)
    stays[root[np.concatenate(pinned)]] = True
    relabelled = {name: site.relabelled(root.__getitem__) for name, site in sites.items()}
    return Channels(stays, relabelled)


def _guesses(layer: Any, widths: list[int], width: int) -> Iterator[_Guess]:
    """What may be true of a layer of these input and output channels, the best first."""
    if not width or not all(widths):
        return
    first, kind = np.arange(widths[0]), type(layer)
    if kind in _MAKERS:
        made, rank = widths[0] + np.arange(width), len(layer.kernel.shape)
        inner = Along(0, rank - 2, first, True)
        bias = (Along(1, 0, made, False),) if layer.use_bias else ()
        along = (inner, Along(0, rank - 1, made, True), *bias)
        yield _Guess([first], made, Site(along, (_MAKERS[kind], made)))
        yield _Guess([first], None, Site((inner,), None))  # as a softmax: it mixes what is made
    elif kind in _EACH and widths == [width]:
        ranks = [len(weight.shape) for weight in layer.weights]
        along = tuple(Along(k, max(rank - 2, 0), first, False) for k, rank in enumerate(ranks))
        yield _Guess([first], first, Site(along, None))
    elif not layer.weights:
        if set(widths) == {width}:
            is_shape = kind is L.Reshape and layer.target_shape[-1] == width
            site = Site((), ("target_shape", first) if is_shape else None)
            yield _Guess([first] * len(widths), first, site)
        if len(widths) > 1 and sum(widths) == width:
            ends = np.cumsum(widths)[:-1]
            yield _Guess(np.split(np.arange(width), ends), np.arange(width), Site((), None))
        if len(widths) == 1 and width > widths[0] and not width % widths[0]:  # flattened
            yield _Guess([first], np.tile(first, width // widths[0]), Site((), None))


def _holds(guess: _Guess, node: Any) -> bool:
    """Whether the layer, made anew without some channels, gives the same for the others."""
    rng = np.random.default_rng(0)
    keep = rng.random(1 + max(local.max() for local in _locals(guess))) < 0.5
    for local in _locals(guess):
        keep[local[0]] |= not keep[local].any()
        keep[local[-1]] &= len(np.unique(local)) == 1 or not keep[local].all()
    shapes = [[size or _SIZE for size in tensor.shape[1:]] for tensor in node.keras_inputs]
    inputs = [rng.normal(size=(2, *shape)).astype(np.float32) for shape in shapes]
    few = [np.compress(keep[local], x, axis=-1) for local, x in zip(guess.taken, inputs)]
    try:
        whole = graph.anew(node.layer)
        part = graph.anew(node.layer, **guess.site.changes(node.layer, keep))
        _called(node, whole, inputs), _called(node, part, few)  # which builds them
        values = [rng.uniform(0.5, 1.5, weight.shape) for weight in whole.weights]
        part.set_weights([guess.site.cut(k, value, keep) for k, value in enumerate(values)])
        for weight, axis, labels, is_group in guess.site.along:
            if is_group and labels is guess.taken[0]:  # a channel that goes has a kernel of zeros
                np.moveaxis(values[weight], axis, 0)[~keep[labels]] = 0.0
        whole.set_weights(values)
        want, have = _called(node, whole, inputs), _called(node, part, few)
    except Exception:  # whatever a layer raises that cannot do without channels
        return False
    if guess.made is not None:
        want = np.compress(keep[guess.made], want, axis=-1)
    scale = float(np.abs(want).max())
    return want.shape == have.shape and np.allclose(have, want, rtol=0, atol=_TOLERANCE * scale)


def _called(node: Any, layer: Any, inputs: list[np.ndarray]) -> np.ndarray:
    """A layer's output in float32."""
    tensors = {id(tensor): tf.cast(x, tensor.dtype) for tensor, x in zip(node.keras_inputs, inputs)}
    return np.asarray(tf.cast(graph.call(node, layer, tensors), tf.float32))


def _locals(guess: _Guess) -> list[np.ndarray]:
    return guess.taken + ([] if guess.made is None else [guess.made])


def _width(tensor: Any) -> int:
    """Size of the last axis; 0 where it is not fixed, or there is none but the batch."""
    return int(tensor.shape[-1] or 0) if len(tensor.shape) > 1 else 0
