"""Channels of a network that can only be removed together.

Every channel of every tensor between the layers carries a label. A layer that makes channels of its
own (a convolution) gives new labels, one that works on each channel alone hands its labels on, one
that puts tensors together (a sum) declares labels equal. What has one label in the end is one
channel to keep or to remove, with all the weights that belong to it. A layer of a kind that is not
known pins the labels that it sees: its channels stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf


class Labels:
    """Labels given so far, and which of them are equal or pinned."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._pinned: list[int] = []

    def new(self, count: int, *, pinned: bool = False) -> np.ndarray:
        """`count` labels that were not there before; int, shape (count,)."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        labels = np.arange(first, first + count)
        if pinned:
            self.pin(labels)
        return labels

    def join(self, ones: np.ndarray, others: np.ndarray) -> None:
        """Make the labels of two arrays of one length equal, one by one."""
        for one, other in zip(ones, others):
            low, high = sorted((self._root(int(one)), self._root(int(other))))
            self._parent[high] = low

    def pin(self, labels: np.ndarray) -> None:
        """Keep these for good."""
        self._pinned.extend(int(label) for label in labels)

    def roots(self) -> np.ndarray:
        """The label that stands for each label and all its equals; int, shape (labels,)."""
        return np.array([self._root(label) for label in range(len(self._parent))], dtype=int)

    def pinned(self) -> np.ndarray:
        """True at the labels that stay; bool, shape (labels,)."""
        roots = self.roots()
        found = np.zeros(len(roots), dtype=bool)
        found[roots[self._pinned]] = True
        return found[roots]

    def _root(self, label: int) -> int:
        while self._parent[label] != label:
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label


@dataclass
class Site:
    """The channels of one layer.

    Attributes:
        layer: the layer.
        axes: (weight, axis, labels): along that axis of `layer.weights[weight]` stand those
            channels.
        sides: the axes of a convolution's or dense layer's kernel: the weights of one label on
            one side are a group of the group lasso.
        width: key in the layer's config and the labels that it counts; None: none.
    """

    layer: Any
    axes: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    sides: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    width: tuple[str, np.ndarray] | None = None

    def axis(self, variable: Any, axis: int, labels: np.ndarray) -> None:
        """Say which channels stand along an axis of a weight; None for a weight: nothing."""
        if variable is not None:
            self.axes.append((self._index(variable), axis, labels))

    def side(self, kernel: Any, axis: int, labels: np.ndarray) -> None:
        """The same for an axis whose groups are in the group lasso."""
        self.axis(kernel, axis, labels)
        self.sides.append((self._index(kernel), axis, labels))

    def all_labels(self) -> Iterator[np.ndarray]:
        """The labels along each axis."""
        for _, _, labels in self.axes:
            yield labels

    def _index(self, variable: Any) -> int:
        return [id(weight) for weight in self.layer.weights].index(id(variable))


@dataclass(frozen=True)
class Channels:
    """Channels of a network; every label stands for itself and all its equals.

    Attributes:
        pinned: True at labels whose channels stay; bool, shape (labels,).
        sites: of every layer that has channels to speak of, by the layer's name.
    """

    pinned: np.ndarray
    sites: Mapping[str, Site]

    @property
    def free(self) -> int:
        """How many channels may be removed."""
        labels = [labels for site in self.sites.values() for _, _, labels in site.sides]
        present = np.unique(np.concatenate(labels)) if labels else np.zeros(0, int)
        return int((~self.pinned[present]).sum())


# What a rule is given: the layer's site, the labels of each input, the shapes (without the batch)
# of each input and of the output, and all labels. It returns the labels of the output, or None
# where it cannot say: then the layer counts as one of an unknown kind.
Rule = Callable[[Site, list[np.ndarray], list[tuple[Any, ...]], tuple[Any, ...], Labels], Any]


def nodes(network: tf.keras.Model) -> Iterator[Any]:
    """The calls of the layers of a functional model, in the order in which they run."""
    for depth in sorted(network._nodes_by_depth, reverse=True):
        yield from network._nodes_by_depth[depth]


def channel_groups(network: tf.keras.Model, rules: Mapping[type, Rule]) -> Channels:
    """Follow the channels of a functional model from its inputs to its outputs.

    Args:
        network: functional model without models inside.
        rules: what is known, by the exact class of a layer.
    """
    labels = Labels()
    sites: dict[str, Site] = {}
    known: dict[int, np.ndarray] = {}  # by id of the tensor
    for node in nodes(network):
        taken = [known[id(tensor)] for tensor in node.keras_inputs]
        made = tf.nest.flatten(node.outputs)
        site = Site(node.layer)
        found = None
        if not node.is_input and len(made) == 1 and _is_plain(node.layer):
            rule = rules.get(type(node.layer))
            shapes = [tuple(tensor.shape[1:]) for tensor in node.keras_inputs]
            if rule is not None and all(len(seen) for seen in taken):
                found = rule(site, taken, shapes, tuple(made[0].shape[1:]), labels)
        if found is None:
            site = Site(node.layer)
            for seen in taken:
                labels.pin(seen)
            found_all = [labels.new(_width(tensor), pinned=True) for tensor in made]
        else:
            found_all = [found]
        known.update((id(tensor), found) for tensor, found in zip(made, found_all))
        _enter(sites, site, labels)
    for tensor in tf.nest.flatten(network.outputs):
        labels.pin(known[id(tensor)])

    roots = labels.roots()
    for site in sites.values():
        site.axes = [(weight, axis, roots[these]) for weight, axis, these in site.axes]
        site.sides = [(weight, axis, roots[these]) for weight, axis, these in site.sides]
        if site.width is not None:
            site.width = (site.width[0], roots[site.width[1]])
    return Channels(labels.pinned(), sites)


def _enter(sites: dict[str, Site], site: Site, labels: Labels) -> None:
    """Add a call's site; a layer that is called again has one set of channels."""
    earlier = sites.setdefault(site.layer.name, site)
    if earlier is site:
        return
    ones, others = _every(earlier), _every(site)
    if [len(labels) for labels in ones] == [len(labels) for labels in others]:
        for one, other in zip(ones, others):
            labels.join(one, other)
    else:  # one call is known, another is not
        for these in ones + others:
            labels.pin(these)


def _every(site: Site) -> list[np.ndarray]:
    width = [] if site.width is None else [site.width[1]]
    return [*site.all_labels(), *width]


def _is_plain(layer: Any) -> bool:
    """Whether channels lie along the last axis, and nothing but the output depends on them."""
    order = getattr(layer, "data_format", "channels_last")
    return order == "channels_last" and getattr(layer, "activity_regularizer", None) is None


def _width(tensor: Any) -> int:
    """Size of the last axis; 0 where it is not fixed, or there is none but the batch."""
    shape = tensor.shape
    known = shape.rank is not None and shape.rank > 1 and shape[-1] is not None
    return int(shape[-1]) if known else 0
