"""The order of a step's ops, which changes no bit, and where a forward pass is cut."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, L, fit, images, mask_of
from training import elastic, everything

from elastic_tf.graph import reach, takes
from elastic_tf.model import ElasticModel
from elastic_tf.train.schedule import Sizes, cuts, size


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


def weight_gradients(op: tf.Operation) -> set[tf.Operation]:
    """Those of kernels that an op waits for."""
    kinds, ends = ("Conv2DBackpropFilter", "MatMul"), ("Filter", "MatMul_1")
    return {one for one in ancestors(op) if one.type in kinds and one.name.endswith(ends)}


def test_one_weight_gradient_lives_at_a_time_and_weights_decay_behind_theirs():
    model = elastic(kind="sgdw", source=deep, keep=1.0)
    graph = traced(model)
    decays = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    decays = [op for op in decays if op.name.startswith("SGDW")]
    assert len(decays) == len(model.tensors)
    assert all(any("gradient_tape" in one.name for one in ancestors(op)) for op in decays)
    inside = {id(out): id(within) for out, within in graph.captures}
    found = {id(op.inputs[0]): op for op in graph.get_operations() if "Keras" in op.type}
    updates = [found[inside[id(v.handle)]] for v in model.tensors if v.shape.rank > 1]
    for number, update in enumerate(updates):
        before = weight_gradients(update)
        assert len(before) == len(updates) - number
        assert {*updates[number + 1 :]} <= ancestors(update)


def kept(graph: tf.Graph) -> int:
    """Bytes that the backward pass takes from before it, shapes aside."""
    late = ("gradient_tape", "SGDW", "again")
    takers = [one for one in graph.get_operations() if one.name.startswith(late)]
    taken = (tensor for op in takers if op.type != "ShapeN" for tensor in op.inputs)
    return sum({t.ref(): size(t) for t in taken if not t.op.name.startswith(late)}.values())


def test_less_is_kept_with_a_smaller_share():
    models = (elastic(kind="sgdw", source=deep, keep=share) for share in (0.0, 0.5, None))
    none, half, most = (kept(traced(model)) for model in models)
    assert none < 0.6 * most and none <= half < most


@pytest.mark.parametrize(
    ("kind", "keep", "blocks", "options"),
    [
        ("adam", 0.0, 2, {"steps_per_execution": 2}),
        ("sgdw", 0.3, 3, {}),
        ("clipped_together", 0.0, 2, {}),
    ],
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


def peak(sizes: Sizes, chosen: list[int]) -> float:
    """Bytes held at the fullest moment of a backward pass over these segments."""
    held, most = 0.0, 0.0
    for number, low in enumerate(chosen):
        held += sizes.crossing[low] if number else 0.0
        high = chosen[number + 1] if number + 1 < len(chosen) else len(sizes.taken) - 1
        inside = slice(low + 1, high + 1)
        most = max(most, held + sizes.taken[inside].sum() + sizes.largest[inside].max())
    return most


def random_sizes(seed: int, ops: int = 14) -> Sizes:
    largest = np.random.default_rng(seed).integers(1, 20, ops).astype(float)
    taken = largest * np.random.default_rng(seed + 1).integers(0, 2, ops)
    return Sizes(largest.copy(), taken, largest)


def ways(sizes: Sizes) -> list[list[int]]:
    """To cut at some of the places where no less crosses beside."""
    crossing = sizes.crossing
    inner = range(1, len(crossing) - 1)
    places = [k for k in inner if crossing[k] <= min(crossing[k - 1], crossing[k + 1])]
    every = (itertools.combinations(places, n) for n in range(len(places) + 1))
    return [[0, *some] for some in itertools.chain(*every)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_share_is_kept_to_with_the_last_segment_as_long_as_it_can_be(share, seed):
    """Where none can keep to it, as little is held as enumeration finds."""
    sizes = random_sizes(seed)
    limit = share * (sizes.taken[1:].sum() + sizes.largest[1:].max())
    fitting = [way for way in ways(sizes) if peak(sizes, way) <= limit]
    found = cuts(sizes, 0, share)
    if fitting:
        assert peak(sizes, found) <= limit
        assert found[-1] == min(way[-1] for way in fitting)
    else:
        assert peak(sizes, found) <= min(peak(sizes, way) for way in ways(sizes)) * (1 + 1e-3)
