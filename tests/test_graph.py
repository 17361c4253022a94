from __future__ import annotations

import tensorflow as tf

from elastic_tf.graph import (
    Node,
    captured,
    has_state,
    made,
    needed_by,
    nodes_of,
    reached_from,
    replace,
)

DIAMOND = {
    "source": Node("Const", ()),
    "left": Node("Op", ("source",), (0,)),
    "right": Node("Op", ("source",), (0,), ("left",)),
    "end": Node("Op", ("left",), (0,)),
    "other": Node("Op", ("right",), (0,)),
}


def test_needed_by_unites_the_sets_of_all_roots_downstream():
    assert needed_by(DIAMOND, {"end": 1, "other": 2}) == {
        "end": 1,
        "other": 2,
        "left": 1,
        "right": 2,
        "source": 3,
    }


def test_reached_from_unites_the_sets_of_all_roots_upstream():
    reached = reached_from(DIAMOND, {"left": 1, "right": 2})
    assert reached == {"left": 1, "right": 2, "end": 1, "other": 2}


def test_needed_by_ends_in_a_loop():
    loop = {"a": Node("Op", ("b",), (0,)), "b": Node("Op", ("a",), (0,))}
    assert needed_by(loop, {"a": 1}) == {"a": 1, "b": 1}


def test_captured_says_which_placeholder_holds_which_variable():
    one, two, unused = (tf.Variable(float(k)) for k in range(3))
    graph = tf.function(lambda x: x * one + two).get_concrete_function(tf.ones(())).graph
    found = captured(graph, [unused, two, one])
    outside = {inside.op: handle for handle, inside in graph.captures}
    assert {outside[op] is [unused, two, one][k].handle for op, k in found.items()} == {True}
    assert sorted(found.values()) == [1, 2]


def test_nodes_that_are_starts_take_nothing():
    @tf.function
    def run(x):
        return tf.reshape(x + 1.0, tf.shape(x))

    ops = run.get_concrete_function(tf.TensorSpec((None,))).graph.get_operations()
    plain, cut = nodes_of(ops), nodes_of(ops, {"AddV2", "Shape"})
    changed = {op.type for op in ops if plain[op] != cut[op]}
    assert changed == {"AddV2", "Shape"} and all(
        not cut[op].inputs for op in ops if op.type in changed
    )


def test_replace_changes_the_named_users_alone():
    @tf.function
    def run(x):
        first, second = tf.square(x), tf.abs(x)
        replace(x, tf.constant(3.0), [first.op])
        return first, second

    assert [y.numpy() for y in run(tf.constant(-2.0))] == [9.0, 2.0]


def test_made_goes_back_by_the_same_output():
    @tf.function
    def run(x, y):
        found.append(made(tf.identity_n([x, y])[1], {"IdentityN"}) is y)

    found: list[bool] = []
    run(tf.constant(1.0), tf.constant(2.0))
    assert found == [True]


def test_what_draws_or_writes_has_state_and_what_reads_has_none():
    kinds = (
        "RandomUniform",
        "AssignVariableOp",
        "ReadVariableOp",
        "Placeholder",
        "Mul",
        "nobody's",
    )
    assert [has_state(kind) for kind in kinds] == [True, True, False, False, False, True]
