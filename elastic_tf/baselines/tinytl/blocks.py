"""Blocks of a convolutional network, found by how its layers are connected.

A block is one of two things:

1. **Residual**: what lies between an `Add` and the last point that all its inputs pass through, if
   there is a convolution in it and no other block. (ResNet's bottlenecks, inverted residuals.)
2. **Separable**: outside of those, a depthwise convolution and the convolution 1x1 that follows it
   in a chain, with the normalisation after that one; and with the convolution 1x1 before them in
   the chain, unless that ends the block before. (MobileNet V1; V2 where it has no shortcut.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

L = tf.keras.layers

_CONVOLUTIONS = (L.Conv2D, L.DepthwiseConv2D, L.SeparableConv2D)


class Block(NamedTuple):
    """A part of a model.

    Attributes:
        input: the symbolic tensor that it takes.
        output: the symbolic tensor that it gives.
        layer: the layer that makes `output`.
        width: channels of its narrowest convolution.
        operations: multiply-adds of its convolutions for one image; 0 where sizes are not known.
    """

    input: Any
    output: Any
    layer: tf.keras.layers.Layer
    width: int
    operations: int


def find(model: tf.keras.Model) -> list[Block]:
    """The blocks of a functional or sequential model, input side first."""
    graph = _Graph(model)
    blocks = {}
    inside: set[int] = set()
    for node in graph.nodes:
        if isinstance(node.layer, L.Add):
            start = graph.passed_by_all(node)
            between = graph.between(start, node)
            convolves = any(isinstance(n.layer, _CONVOLUTIONS) for n in between)
            nested = any(id(n) in blocks for n in between)
            if convolves and not nested and _shrinks(start, node):
                blocks[id(node)] = _block(start.outputs, between, node)
                inside |= {id(n) for n in between}
    ends: set[int] = set()  # convolutions 1x1 that end a separable block
    for node in graph.nodes:
        if isinstance(node.layer, L.DepthwiseConv2D) and id(node) not in inside:
            pointwise = graph.next_convolution(node)
            if pointwise is None or not _is_pointwise(pointwise):
                continue
            ends.add(id(pointwise))
            first = graph.behind_padding(node)
            before = graph.previous_convolution(node)
            if before is not None and _is_pointwise(before) and id(before) not in ends:
                first = before
            last = graph.with_normalisation(pointwise)
            chain = [before if first is before else None, node, pointwise]
            blocks[id(last)] = _block(first.keras_inputs[0], filter(None, chain), last)
    return [blocks[id(node)] for node in graph.nodes if id(node) in blocks]


def _block(start: Any, nodes: Iterable[Any], last: Any) -> Block:
    """The block of these nodes, with what its convolutions amount to."""
    convolutions = [node for node in nodes if isinstance(node.layer, _CONVOLUTIONS)]
    operations = 0
    for node in convolutions:
        kernels = [weight for weight in node.layer.weights if weight.shape.rank == 4]
        pixels = math.prod(size or 0 for size in node.outputs.shape[1:3])
        operations += pixels * sum(math.prod(kernel.shape) for kernel in kernels)
    # not those that see the image as one pixel, as in squeeze-and-excitation
    widths = [n.outputs.shape[-1] for n in convolutions if tuple(n.outputs.shape[1:3]) != (1, 1)]
    width = min(widths, default=last.outputs.shape[-1])
    return Block(start, last.outputs, last.layer, width, operations)


class _Graph:
    """The calls of layers in a model (Keras's nodes), in an order in which they can be made."""

    def __init__(self, model: tf.keras.Model) -> None:
        by_depth = model._nodes_by_depth
        self.nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
        made_by = {
            id(tensor): node for node in self.nodes for tensor in tf.nest.flatten(node.outputs)
        }
        self._sources = {
            id(node): [made_by[id(tensor)] for tensor in node.keras_inputs]
            if not node.is_input
            else []
            for node in self.nodes
        }
        self._users: dict[int, list[Any]] = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            for source in self._sources[id(node)]:
                self._users[id(source)].append(node)
        self._dominators = self._passed_by_all()

    def passed_by_all(self, node: Any) -> Any:
        """The last node before `node` that every way from the inputs to it passes; or None."""
        return self._dominators[id(node)]

    def _passed_by_all(self) -> dict[int, Any]:
        above: dict[int, Any] = {}
        depth: dict[int | None, int] = {None: 0}
        for node in self.nodes:
            sources = self._sources[id(node)]
            common = sources[0] if sources else None
            for other in sources[1:]:
                while common is not other:
                    # climb from the deeper of the two
                    if depth[_key(common)] >= depth[_key(other)]:
                        common = above[id(common)]
                    else:
                        other = above[id(other)]
            above[id(node)] = common
            depth[id(node)] = depth[_key(common)] + 1
        return above

    def between(self, start: Any, end: Any) -> list[Any]:
        """Nodes on the ways from `start` to `end`, both left out."""
        if start is None:
            return []
        found, queue = {id(start): start}, [end]
        while queue:
            for source in self._sources[id(queue.pop())]:
                if id(source) not in found:
                    found[id(source)] = source
                    queue.append(source)
        return [node for node in found.values() if node is not start]

    def next_convolution(self, node: Any) -> Any:
        """The convolution that takes what `node` gives, through layers in a chain; or None."""
        return next((n for n in self._forwards(node) if isinstance(n.layer, _CONVOLUTIONS)), None)

    def previous_convolution(self, node: Any) -> Any:
        """The convolution that `node` takes from, through layers in a chain; or None."""
        return next((n for n in self._backwards(node) if isinstance(n.layer, _CONVOLUTIONS)), None)

    def behind_padding(self, node: Any) -> Any:
        """The padding before `node` if there is one, else `node`."""
        before = next(self._backwards(node), None)
        return before if before and isinstance(before.layer, L.ZeroPadding2D) else node

    def with_normalisation(self, node: Any) -> Any:
        """The normalisation after `node` if there is one, else `node`."""
        after = next(self._forwards(node), None)
        return after if after and {"gamma", "beta"} <= vars(after.layer).keys() else node

    def _forwards(self, node: Any) -> Iterator[Any]:
        return _in_line(node, self._users, self._sources)

    def _backwards(self, node: Any) -> Iterator[Any]:
        return _in_line(node, self._sources, self._users)


def _in_line(node: Any, onward: dict[int, Any], back: dict[int, Any]) -> Iterator[Any]:
    """The nodes that follow one by one, as long as nothing branches off or joins."""
    while len(onward[id(node)]) == 1:
        (node,) = onward[id(node)]
        if len(back[id(node)]) != 1:
            return
        yield node


def _key(node: Any) -> int | None:
    return None if node is None else id(node)


def _is_pointwise(node: Any) -> bool:
    layer = node.layer
    is_plain = type(layer) is L.Conv2D and layer.groups == 1
    return is_plain and (layer.kernel_size, layer.strides) == ((1, 1), (1, 1))


def _shrinks(start: Any, end: Any) -> bool:
    """Whether images go in and images of at most their size come out."""
    shapes = [getattr(node.outputs, "shape", None) for node in (start, end)]
    if any(shape is None or shape.rank != 4 for shape in shapes):
        return False
    before, after = (list(shape)[1:3] for shape in shapes if shape is not None)
    return all(a is None or b is None or b <= a for a, b in zip(before, after))
