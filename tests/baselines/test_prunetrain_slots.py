from __future__ import annotations

import numpy as np
import pytest
from networks import CLASSES, MORE_OPTIMIZERS, K, images
from prunable import assert_close, block, compiled, shrink

from elastic_tf import optimizers
from elastic_tf.baselines.prunetrain import slots


def step(model, seed=0):
    x, _ = images(seed=seed)
    y = np.arange(len(x)) % CLASSES
    model.fit(x, y, batch_size=len(x), epochs=1, verbose=0, shuffle=False)


def trained(kind):
    """A model after two steps, some of its channels set to zero since."""
    model = compiled(block, MORE_OPTIMIZERS[kind]())
    step(model)
    step(model, seed=1)
    return model, np.flatnonzero(shrink(model.network)).tolist()


def slots_of(model):
    return [
        slots._slots(optimizers.unwrapped(model.optimizer), variable)
        for variable in model.trainable_variables
    ]


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_slots_of_what_is_kept_keep_their_bits(kind, monkeypatch):
    model, labels = trained(kind)
    seen = {}
    real = slots.carry

    def carry(optimizer, carried, variables):
        seen["of"] = carried
        real(optimizer, carried, variables)

    monkeypatch.setattr(slots, "carry", carry)
    before = {
        id(variable): {name: slot.numpy() for name, slot in own.items()}
        for variable, own in zip(model.trainable_variables, slots_of(model))
    }
    single = [value for value in values_of(model) if np.ndim(value) == 0]
    optimizer = model.optimizer
    model.remove(labels)

    assert model.optimizer is optimizer
    origin = {id(item.new): item for item in seen["of"]}
    names = set()
    for variable, own in zip(model.trainable_variables, slots_of(model)):
        item = origin[id(variable)]
        assert own.keys() == before[id(item.old)].keys()
        for name, slot in own.items():
            names.add(name)
            np.testing.assert_array_equal(slot.numpy(), item.of(before[id(item.old)][name]))
    assert names or kind == "scaled_legacy"
    np.testing.assert_array_equal([v for v in values_of(model) if np.ndim(v) == 0], single)
    alone = compiled(block, MORE_OPTIMIZERS[kind]())
    optimizers.build(alone.optimizer, alone.trainable_variables)
    assert len(optimizers.state(model.optimizer)) == len(optimizers.state(alone.optimizer))


def values_of(model):
    return [variable.numpy() for variable in optimizers.state(model.optimizer)]


@pytest.mark.parametrize("kind", ["sgd", "adam", "sgdw", "average", "legacy_adam", "scaled"])
def test_training_goes_on_as_that_of_the_masked_model(kind):
    masked, labels = trained(kind)
    smaller, _ = trained(kind)
    cuts = kept_indices(smaller, labels)
    smaller.remove(labels)
    step(masked, seed=2)
    step(smaller, seed=2)
    assert int(smaller.optimizer.iterations) == 3
    # Of the masked model only what is removed differs: a zero kernel behind an offset is trained.
    for old, new in zip(masked.network.weights, smaller.network.weights):
        assert_close(new.numpy(), cuts[old.name](old.numpy()))


def kept_indices(model, labels):
    keep = np.ones(len(model.channels.pinned), dtype=bool)
    keep[labels] = False
    cuts = {weight.name: [] for weight in model.network.weights}
    for layer in model.network.layers:
        site = model.channels.sites.get(layer.name)
        for weight, axis, along in site.axes if site else []:
            cuts[layer.weights[weight].name].append((axis, keep[along]))

    def cut(name):
        def of(value):
            for axis, kept in cuts[name]:
                value = np.compress(kept, value, axis=axis)
            return value

        return of

    return {name: cut(name) for name in cuts}


def test_an_optimizer_not_built_yet_is_built_over_the_new_tensors():
    model = compiled()
    model.remove(np.flatnonzero(shrink(model.network)).tolist())
    step(model)
    assert int(model.optimizer.iterations) == 1


def test_excluded_tensors_stay_without_weight_decay():
    model = compiled(block, K.AdamW(1e-2))
    kernel = model.network.get_layer("one_a").kernel
    model.optimizer.exclude_from_weight_decay(var_list=[kernel])
    step(model)
    model.remove(np.flatnonzero(shrink(model.network)).tolist())
    used = [
        variable.name
        for variable in model.trainable_variables
        if not model.optimizer._use_weight_decay(variable)
    ]
    assert used == [model.network.get_layer("one_a").kernel.name]


def test_slots_of_another_shape_are_refused():
    model = compiled(block, K.Adafactor(1e-2))
    with pytest.raises(ValueError, match="slot '_r' .* of Adafactor for 'stem/kernel:0'"):
        model.remove([int(np.flatnonzero(shrink(model.network))[0])])


class Around(K.legacy.SGD):
    """Like TensorFlow Addons' Lookahead."""

    def __init__(self):
        super().__init__(0.1)
        self._optimizer = K.legacy.Adam(0.1)


def test_an_optimizer_around_another_is_refused():
    with pytest.raises(TypeError, match="Received: Around around Adam"):
        slots.check(Around(), block().trainable_variables)
