"""The order of a step's ops: what it changes of the graph, and that it changes no bit."""

from typing import Any

import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, K, L, fit, images, mask_of
from training import elastic, everything

from elastic_tf.graph import reach, takes
from elastic_tf.model import ElasticModel
from elastic_tf.train.schedule import size


def deep(blocks: int = 3) -> tf.keras.Model:
    """Residual blocks with normalisation and dropout, each of which a cut may cross."""
    inputs = x = L.Input(IMAGE)
    x = L.Conv2D(4, 3, padding="same")(x)
    for number in range(blocks):
        y = L.BatchNormalization(name=f"bn{number}")(L.ReLU()(x))
        y = L.Dropout(0.2, name=f"drop{number}")(L.Conv2D(8, 3, padding="same")(y))
        x = L.Add()([x, L.Conv2D(4, 1, name=f"narrow{number}")(y)])
    return tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(L.Flatten()(x)))


def traced(model: ElasticModel) -> tf.Graph:
    """The graph of a step on the images."""
    model.make_train_function()  # the optimizer's slots
    return tf.function(model.train_step).get_concrete_function(images()).graph


def ancestors(op: tf.Operation) -> set[tf.Operation]:
    return reach([op], lambda one: [*takes(one), *one.control_inputs]) - {op}


def kernel_updates(model: ElasticModel, graph: tf.Graph) -> list[tf.Operation]:
    """The op that updates each kernel by its gradient, in forward order."""
    inside = {id(out): id(within) for out, within in graph.captures}
    handles = [inside[id(v.handle)] for v in model.tensors if v.shape.rank > 1]
    kinds = ("ResourceApplyKerasMomentum", "ResourceApplyAdam")
    updates = [op for op in graph.get_operations() if op.type in kinds]
    return [next(op for op in updates if id(op.inputs[0]) == handle) for handle in handles]


def weight_gradients(op: tf.Operation) -> set[tf.Operation]:
    kinds = ("Conv2DBackpropFilter", "MatMul")
    return {
        one
        for one in ancestors(op)
        if one.type in kinds and one.name.endswith(("Filter", "MatMul_1"))
    }


def test_one_weight_gradient_lives_at_a_time_and_weights_decay_behind_theirs():
    model = elastic(kind="sgdw", source=deep, keep=1.0)
    graph = traced(model)
    decays = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    decays = [op for op in decays if op.name.startswith("SGDW")]
    assert len(decays) == len(model.tensors)
    assert all(any("gradient_tape" in one.name for one in ancestors(op)) for op in decays)
    updates = kernel_updates(model, graph)
    for number, update in enumerate(updates):
        before = weight_gradients(update)
        assert len(before) == len(updates) - number
        for later in updates[number + 1 :]:
            assert later in ancestors(update)


def test_a_global_norm_is_that_of_all_gradients(deterministic):
    models = [
        elastic(source=lambda: deep(2), optimizer=K.SGD(0.1, global_clipnorm=0.1), keep=share)
        for share in (0.0, None)
    ]
    for model in models:
        fit(model)
    assert everything(models[0]) == everything(models[1])


def kept(graph: tf.Graph) -> int:
    """Bytes that the backward pass takes from before it, shapes aside."""
    late = ("gradient_tape", "SGDW", "again")
    tensors: dict[Any, int] = {}
    for op in graph.get_operations():
        if op.name.startswith(late) and op.type != "ShapeN":
            for tensor in op.inputs:
                if not tensor.op.name.startswith(late):
                    tensors[tensor.ref()] = size(tensor)
    return sum(tensors.values())


def test_less_is_kept_with_a_smaller_share():
    none, half, everything_ = (
        kept(traced(elastic(kind="sgdw", source=deep, keep=share))) for share in (0.0, 0.5, None)
    )
    assert none < 0.6 * everything_
    assert none <= half < everything_


@pytest.mark.parametrize(
    ("kind", "keep", "blocks", "options"),
    [("adam", 0.0, 2, {"steps_per_execution": 2}), ("sgdw", 0.3, 3, {})],
)
def test_what_is_computed_again_is_the_same(kind, keep, blocks, options, deterministic):
    options = {"kind": kind, "source": lambda: deep(blocks), "metrics": ["accuracy"], **options}
    ours, theirs = elastic(keep=keep, **options), elastic(**options)
    if keep:  # of some tensors
        for model in (ours, theirs):
            model.set_mask(mask_of(model, "narrow0", "bn1", "narrow2", "head"))
    assert fit(ours) == fit(theirs)
    assert everything(ours) == everything(theirs)


def test_frozen_layers_are_never_computed_again():
    model = elastic(kind="sgdw", source=deep, keep=0.0)
    model.set_mask(mask_of(model, "narrow1", "bn2", "narrow2", "head"))
    again = [op.name for op in traced(model).get_operations() if op.name.startswith("again")]
    assert again and not [name for name in again if "bn0" in name]


def test_compile_raises_where_the_share_is_none():
    with pytest.raises(ValueError, match=r"`keep` must be .*keep=1\.5"):
        elastic(keep=1.5)
