import few_images
import numpy as np
import pytest
from pages import DOCS, blocks
from related.tinytrain import batch

import elastic_tf as et
from elastic_tf.methods import fewshot
from elastic_tf.methods.fewshot import augmented
from elastic_tf.methods.kernels import Budgets


def holed(images):
    found = images.copy()
    found[3, 0, 0] = np.nan
    return found


@pytest.fixture(scope="module")
def net():
    return fewshot.ProtoNet(few_images.network())


def test_adapting_trains_what_was_chosen_and_nothing_else_the_same_at_each_time(deterministic):
    net, task, weights = fewshot.ProtoNet(few_images.network()), few_images.task(), []
    own, before = net.model.get_weights(), [value.numpy() for value in net.model.tensors]
    for seed in (1, 1, 2):
        net.model.set_weights(own)
        options = {"compute": 0.4, "inspect": 1.0, "steps": 3, "seed": seed, "views": None}
        found = fewshot.adapt(net, task.support, task.support_labels, **options)
        weights.append(np.concatenate([one.ravel() for one in net.model.get_weights()]))
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(*weights[1:])
    assert found.plan.channels
    shares = net.costs.shares(found.plan)
    assert found.macs == net.costs.backward_macs(shares) <= 0.4 * net.costs.full_macs
    assert found.memory == net.costs.memory(shares)
    for k, (old, tensor) in enumerate(zip(before, net.model.tensors)):
        changed = old != tensor.numpy()
        assert changed.any() == found.plan.mask[k]
        if k in found.plan.channels:
            axis = 2 if "depth" in tensor.name else 3
            others = np.delete(changed, found.plan.channels[k], axis)
            assert not others.any()


def test_steps_behind_the_frozen_part_equal_whole_steps(deterministic):
    task, steps, views = few_images.task(), 3, 2
    mask = np.arange(9) >= 6
    cached, whole = (fewshot.ProtoNet(few_images.network()) for _ in range(2))
    found = fewshot.adapt(
        cached, task.support, task.support_labels, plan=mask, steps=steps, views=views
    )
    rng, count = np.random.default_rng(0), len(task.support)
    drawn = [augmented(task.support, rng) for _ in range(views)]
    whole.adam(1e-3)
    whole.model.set_plan(mask)
    batches = [
        batch(task.support, task.support_labels, drawn[step % views], task.support_labels)
        for step in range(steps)
    ]
    for x, y in batches:
        whole.model.fit(x, y, batch_size=2 * count, shuffle=False, verbose=0)
    for ours, keras in zip(cached.model.get_weights(), whole.model.get_weights()):
        np.testing.assert_allclose(ours, keras, rtol=1e-4, atol=1e-6)
    assert found.kept == (1 + views) * count * 4 * 4 * 8 * 4  # of numbers of an image at the cut


def test_adapting_tells_new_classes_apart_and_says_their_names():
    task = few_images.task()
    names = np.array(["ant", "bee", "cow", "dog"])
    net = fewshot.ProtoNet(few_images.network())
    right = {}
    for steps in (0, 60):
        found = fewshot.adapt(net, task.support, names[task.support_labels], steps=steps, compute=1)
        said = found.predict(task.query)
        right[steps] = (said == names[task.query_labels]).mean()
    assert set(said) <= set(names) and found.classes.tolist() == names.tolist()
    np.testing.assert_allclose(found.probabilities(task.query).sum(1), 1.0, rtol=1e-5)
    assert right[60] > right[0]


def test_a_rule_of_ones_own_is_given_worth_costs_and_budgets(net):
    task, seen = few_images.task(), []

    def rule(worth, costs, budgets):
        seen.append((sorted(worth), budgets))
        return et.Plan.full(len(costs.sizes))

    options = {"rule": rule, "memory": "1 MiB", "compute": 0.5, "inspect": 0.6, "steps": 1}
    found = fewshot.adapt(net, task.support, task.support_labels, **options)
    last = sorted(net.costs.channels)[-2:]
    assert seen == [(last, Budgets(2**20, 0.5 * net.costs.full_macs))]
    assert found.plan == et.Plan.full(9)


def test_the_guide_keeps_what_recognises_as_before(tmp_path, monkeypatch):
    task = few_images.task()
    found = fewshot.adapt(few_images.network(), task.support, task.support_labels, steps=2)
    monkeypatch.chdir(tmp_path)
    names = {"found": found, "new_images": task.support}
    exec(blocks(DOCS / "guides" / "five_pictures.md", "python")[1], names)
    np.testing.assert_array_equal(names["names"], found.predict(task.support))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "1 KiB"}, r"what inference takes.*memory='1 KiB'"),
        ({"compute": 1.5}, "compute=1.5"),
        ({"compute": 1e-6}, "which none of"),
        ({"views": 0}, "`views`.*Received: 0"),
        ({"steps": -1}, "`steps`.*Received: -1"),
        ({"inspect": 0.0}, "inspect=0.0"),
        ({"plan": np.ones(3, bool)}, r"\(3,\)"),
        ({"labels": np.zeros(16, int)}, r"two classes.*array\(\[0\]\)"),
        ({"images": np.zeros((16, 8, 8))}, r"\(16, 8, 8\)"),
        ({"images": np.zeros((16, 9, 7, 1))}, r"takes.*Received: shape \(16, 9, 7, 1\).*tf.image"),
        ({"images": holed(few_images.task().support)}, r"in 1 of 16, the first .* images\[3\]"),
        ({"labels": np.array([["a"]] * 16, object)}, r"object|<U1"),
    ],
)
def test_what_cannot_be_adapted_to_is_refused(net, options, message):
    task = few_images.task()
    given = {"images": task.support, "labels": task.support_labels, **options}
    with pytest.raises(ValueError, match=message):
        fewshot.adapt(net, given.pop("images"), given.pop("labels"), **given)


def test_what_cannot_be_recognised_is_refused_and_names_may_be_objects(net):
    task = few_images.task()
    names = np.array([f"class {k}" for k in task.support_labels], object)
    found = fewshot.adapt(net, task.support, names, steps=0)
    assert set(found.predict(task.query)) <= set(names)
    for images, message in (
        (holed(task.query), r"the first of them images\[3\]"),
        (task.query[0], r"A single image is images\[None\]"),
        (task.query[:0], "n at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            found.predict(images)
