"""A traced model, run again by the rules of `rules`, whole or in two parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from elastic_tf.app.export import rules
from elastic_tf.graph import READS, captured, reach, takes, users


class Network:
    """The forward pass of one kind of batch, to be run in another graph; some ops are refused."""

    def __init__(self, forward: Any, batch: tf.TensorSpec) -> None:
        # which keeps the graph alive
        self._function = tf.function(forward, autograph=False).get_concrete_function(batch)
        graph = self._function.graph
        self._variables = {variable.handle.ref(): variable for variable in graph.variables}
        self._outside = {inside.ref(): outside for outside, inside in graph.captures}
        self.input = graph.inputs[0]
        self.output = graph.outputs[0]
        self._ops = self._needed(self.output)
        self._from_input = reach([self.input.op], users)
        for op in self._ops:
            on_path = op in self._from_input and op is not self.input.op
            if on_path and (why := rules.refusal(op)):
                raise ValueError(
                    f"The model must have layers that LiteRT can train. Received: the op {op.type} "
                    f"in '{op.name}', {why}. Replace that layer."
                )

    def cut(self, trained: Iterable[tf.Variable]) -> tf.Tensor:
        """The last activations that depend on none of the variables, and that all else goes by.

        The model's input, if there are no others.
        """
        moving = {self.output.op, *reach(captured(self.output.graph, trained), users)}
        moving &= {*self._ops}
        for op in reversed(self._ops):
            is_one = len(op.outputs) == 1 and op.outputs[0].dtype == tf.float32
            if is_one and op in self._from_input - moving:
                around = reach({self.input.op} - {op}, lambda one: {*users(one)} - {op})  # noqa: B023
                if not around & moving:
                    return op.outputs[0]
        return self.input

    def run(
        self, values: dict[Any, tf.Tensor], start: tf.Tensor, x: tf.Tensor, end: tf.Tensor
    ) -> tf.Tensor:
        """What tensor `end` of the model is where `start` is x, in the graph that is being traced.

        `values` are of variables, by their reference; others are read, and added.
        """
        known = {start.ref(): x}
        for op in self._needed(end, stop=start):
            if op is start.op:
                continue
            if op.type == "Placeholder":
                (inside,) = op.outputs
                known[inside.ref()] = self._outside[inside.ref()]
            elif op.type in READS:
                handle = known[op.inputs[0].ref()]
                variable = self._variables[handle.ref()]
                if variable.ref() not in values:
                    values[variable.ref()] = variable.read_value()
                known[op.outputs[0].ref()] = values[variable.ref()]
            else:
                made = rules.normalised_convolution(op, known)
                if made is None:
                    rule: Callable[..., Any] = rules.RULES.get(op.type, _same)
                    made = rule(op, *(known[tensor.ref()] for tensor in op.inputs))
                outputs = zip(op.outputs, tf.nest.flatten(made))
                known.update({old.ref(): new for old, new in outputs})
        return known[end.ref()]

    def behind(self, tensor: tf.Tensor, start: tf.Tensor | None = None) -> set[Any]:
        """References of the variables that a tensor depends on, not by way of `start`."""
        needed = self._needed(tensor, stop=start)
        handles = {op.outputs[0].ref() for op in needed if op.type == "Placeholder"}
        return {
            self._variables[outside.ref()].ref()
            for inside, outside in self._outside.items()
            if inside in handles and outside.ref() in self._variables
        }

    def multiplied_by(self, kernel: tf.Variable) -> tf.Tensor | None:
        """What a matrix product takes beside the kernel; None where there is no such product."""
        for op in reversed(self._ops):
            if op.type == "MatMul" and self.behind(op.inputs[1]) == {kernel.ref()}:
                return op.inputs[0]
        return None

    def _needed(self, end: tf.Tensor, stop: tf.Tensor | None = None) -> list[Any]:
        """The ops that a tensor needs, in the order in which they were traced."""
        last = None if stop is None else stop.op
        found = reach([end.op], lambda op: () if op is last else takes(op))
        return [op for op in self.output.graph.get_operations() if op in found]


def _same(op: tf.Operation, *inputs: tf.Tensor) -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    kinds = [tensor.dtype for tensor in op.outputs]
    return graph.create_op(op.type, inputs, kinds, attrs=dict(op.node_def.attr)).outputs
