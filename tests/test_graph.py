import tensorflow as tf

from elastic_tf.graph import Node, needed_by, reached_from, replace

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


def test_replace_changes_the_named_users_alone():
    @tf.function
    def run(x):
        first, second = tf.square(x), tf.abs(x)
        replace(x, tf.constant(3.0), [first.op])
        return first, second

    assert [y.numpy() for y in run(tf.constant(-2.0))] == [9.0, 2.0]
