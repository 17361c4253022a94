from __future__ import annotations

import gc
import weakref

import pytest
import tensorflow as tf

from elastic_tf.engine.state import LastUsed
from elastic_tf.plan import Plan
from elastic_tf.stack import gradient_registry, never_differentiated


def test_the_least_recently_used_function_is_dropped():
    functions = LastUsed(size=2)
    one, two, full = Plan([0, 1]), Plan([1, 0]), None
    functions.put(one, (1, 1))
    functions.put(full, (2, 2))
    functions.get(Plan([0, 1]))
    functions.put(two, (3, 3))
    assert [functions.get(plan) for plan in (one, full, two)] == [(1, 1), None, (3, 3)]
    functions.clear()
    assert len(functions) == 0


@pytest.mark.parametrize("repeated", [False, True])
def test_never_differentiated_lets_the_graph_of_a_custom_gradient_go(repeated):
    def step(x):
        with never_differentiated():
            return tf.nn.silu(x)

    def steps(x):
        for _ in tf.range(2):  # AutoGraph traces the body in a graph of its own first
            y = step(x)
        return y

    function = tf.function(steps if repeated else step)
    graph = weakref.ref(function.get_concrete_function(tf.TensorSpec((2,))).graph)
    del function
    gc.collect()
    assert graph() is None


def test_never_differentiated_keeps_entries_made_before():
    with tf.Graph().as_default():
        tf.nn.silu(tf.ones(2))
    before = set(gradient_registry._registry)
    with never_differentiated():
        pass
    assert set(gradient_registry._registry) == before
