"""Blocks of a convolutional network, found by how its layers are connected.

A *waist* is a call of a layer that every way through the network passes. A block is one of two
things:

1. **Residual**: what lies between two waists that follow one another, if the second is an `Add` and
   there is a convolution between them. (ResNet's bottlenecks, inverted residuals.)
2. **Separable**: in a chain of waists a depthwise convolution and the convolution 1x1 that follows
   it, with the normalisation after that one; and with the convolution 1x1 before them, unless that
   ends the block before. (MobileNet V1; V2 where it has no shortcut.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from related import graph

L = tf.keras.layers

_CONVOLUTIONS = (L.Conv2D, L.DepthwiseConv2D, L.SeparableConv2D)


class Block(NamedTuple):
    """A part of a model, from one symbolic tensor to another."""

    input: Any
    output: Any
    layer: tf.keras.layers.Layer  # that makes `output`
    width: int  # channels of its narrowest convolution
    operations: int  # multiply-adds of its convolutions for an image; 0 where sizes are not known


def find(model: tf.keras.Model) -> list[Block]:
    """The blocks of a functional or sequential model, input side first."""
    nodes = list(graph.nodes(model))
    blocks: list[Block] = []
    chain: list[Any] = []
    waists = _waists(nodes)
    for before, here in zip([-1, *waists], waists):
        if here - before > 1:  # branches, which end the chain
            blocks += _separable(chain)
            chain = []
            inside = nodes[before + 1 : here]
            if before >= 0 and isinstance(nodes[here].layer, L.Add) and _convolutions(inside):
                blocks += _block(nodes[before].outputs, inside, nodes[here])
        chain.append(nodes[here])
    return blocks + _separable(chain)


def _waists(nodes: Sequence[Any]) -> list[int]:
    """Indices of the calls that no tensor goes round."""
    place = {id(t): k for k, node in enumerate(nodes) for t in node.outputs}
    last_use = list(range(len(nodes)))
    for k, node in enumerate(nodes):
        for tensor in node.inputs:
            last_use[place[id(tensor)]] = k
    found, reach = [], max(k for k, node in enumerate(nodes) if node.is_input)
    for k in range(len(nodes)):
        if reach <= k:
            found.append(k)
        reach = max(reach, last_use[k])
    return found


def _separable(chain: Sequence[Any]) -> list[Block]:
    """The separable blocks of calls that follow one another."""
    found = []
    places = [k for k, node in enumerate(chain) if isinstance(node.layer, _CONVOLUTIONS)]
    ended = -1  # the convolution that ended the block before
    for before, depthwise, last in zip([-1, *places], places, places[1:]):
        if isinstance(chain[depthwise].layer, L.DepthwiseConv2D) and _is_pointwise(chain[last]):
            first = depthwise - isinstance(chain[depthwise - 1].layer, L.ZeroPadding2D)
            if before not in (-1, ended) and _is_pointwise(chain[before]):
                first = before
            ended, end = last, last
            if end + 1 < len(chain) and {"gamma", "beta"} <= vars(chain[end + 1].layer).keys():
                end += 1
            found += _block(chain[first].inputs, chain[first : end + 1], chain[end])
    return found


def _block(starts: Sequence[Any], inside: Sequence[Any], last: Any) -> list[Block]:
    """The block of these calls; none unless it maps images to images of at most their size."""
    if len(last.outputs) > 1:
        return []
    start, end = starts[0], last.outputs[0]
    shapes: list[Any] = [start.shape, end.shape]
    if [len(shape) for shape in shapes] != [4, 4]:
        return []
    if any((after or 0) > (before or 0) for before, after in zip(*(s[1:3] for s in shapes))):
        return []
    operations, widths = 0, []
    for node in _convolutions(inside):
        *sizes, width = node.outputs[0].shape[1:]
        kernels = [weight for weight in node.layer.weights if len(weight.shape) == 4]
        operations += math.prod(size or 0 for size in sizes) * sum(
            math.prod(kernel.shape) for kernel in kernels
        )
        if sizes != [1, 1]:  # as in squeeze-and-excitation
            widths.append(width)
    width = min(widths, default=shapes[1][-1])
    return [Block(start, end, last.layer, width, operations)]


def _convolutions(nodes: Sequence[Any]) -> list[Any]:
    return [node for node in nodes if isinstance(node.layer, _CONVOLUTIONS)]


def _is_pointwise(node: Any) -> bool:
    layer = node.layer
    is_plain = type(layer) is L.Conv2D and layer.groups == 1
    return is_plain and (layer.kernel_size, layer.strides) == ((1, 1), (1, 1))
