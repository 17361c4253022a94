"""Filtered gradients against a loop over patches, some channels, and training under such plans."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from training import assert_kept_alike

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.memory.ops import graph_flops
from elastic_tf.timing.step import StepFunction
from elastic_tf.train import optimizers
from elastic_tf.train.engine.gradients import Filter

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers
SCE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gradients(x, kernel, upstream, r, s=1, padding="SAME", depthwise=False):
    """Filtered gradients of a convolution by its inputs and by its kernel."""
    x, kernel, upstream = map(tf.convert_to_tensor, (x, kernel, upstream))
    made = Filter(x.shape, kernel.shape, r, s, padding, depthwise)
    means = made.means(upstream)
    return made.of_input(means, kernel), made.of_kernel(made.sums(x), means)


def shapes_of(size, k, s, padding):
    """Outputs, and pixels of padding before the first one."""
    if padding == "VALID":
        return (size - k) // s + 1, 0
    output = -(-size // s)
    return output, max((output - 1) * s + k - size, 0) // 2


def by_loops(x, kernel, upstream, r, s, padding, depthwise):
    """The definition, a patch at a time."""
    n, height, width, channels = x.shape
    k = kernel.shape[0]
    of_x, of_kernel = np.zeros_like(x), np.zeros(kernel.shape[2:])
    groups = channels if depthwise else channels // kernel.shape[2]
    total = kernel.sum((0, 1))
    (rows, top), (columns, left) = (
        shapes_of(size, k, stride, padding) for size, stride in zip((height, width), s)
    )

    def window(first, before, size, outputs, s):
        """Rows or columns of the input behind a patch that begins at `first`."""
        if k == 1:
            return np.arange(first, min(first + r, outputs)) * s
        start = (k - s) // 2 - before + first * s
        return np.arange(max(start, 0), max(min(start + r * s, size), 0))

    scale = 1.0 if k == 1 else s[0] * s[1]
    for image in range(n):
        for i in range(0, rows, r):
            for j in range(0, columns, r):
                mean = upstream[image, i : i + r, j : j + r].mean((0, 1))
                here = np.ix_(
                    [image],
                    window(i, top, height, rows, s[0]),
                    window(j, left, width, columns, s[1]),
                )
                inputs = x[here].sum((0, 1, 2)) / scale
                for g in range(groups):
                    a = np.arange(channels).reshape(groups, -1)[g]
                    b = np.arange(len(mean)).reshape(groups, -1)[g]
                    if depthwise:
                        of_kernel[g] += inputs[g] * mean[b]
                        of_x[here[0], here[1], here[2], g] = mean[b] @ total[g] / scale
                    else:
                        of_kernel[:, b] += np.outer(inputs[a], mean[b])
                        for c in a:
                            value = mean[b] @ total[c % len(a), b] / scale
                            of_x[here[0], here[1], here[2], c] = value
    return of_x, np.broadcast_to(of_kernel, kernel.shape)


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    k=st.sampled_from([1, 2, 3]),
    s=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    r=st.integers(1, 4),
    padding=st.sampled_from(["SAME", "VALID"]),
    kind=st.sampled_from(["plain", "groups", "depthwise"]),
    seed=st.integers(0, 99),
)
def test_gradients_are_those_of_a_loop_over_patches(size, k, s, r, padding, kind, seed):
    outputs = [shapes_of(one, k, stride, padding)[0] for one, stride in zip(size, s)]
    r = min(r, *outputs)
    shape = {"plain": (4, 3), "groups": (2, 6), "depthwise": (4, 2)}[kind]
    last = 8 if kind == "depthwise" else shape[1]
    x, kernel, upstream = drawn(seed, (2, *size, 4), (k, k, *shape), (2, *outputs, last))
    given_ = (x, kernel, upstream, r, s, padding, kind == "depthwise")
    for found, expected in zip(gradients(*given_), by_loops(*given_)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def model(optimizer="sgd", **compiled):
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((12, 12, 3))
    same = {"padding": "same", "activation": "relu"}
    x = L.Conv2D(8, 3, 2, name="first", **same)(inputs)
    x = L.DepthwiseConv2D(3, depth_multiplier=2, name="depthwise", **same)(x)
    x = L.Conv2D(12, 1, use_bias=False, name="point")(x)
    x = L.Conv2D(12, 3, padding="same", groups=2, use_bias=False, name="groups")(x)
    x = L.Dense(9, name="hidden")(L.GlobalAveragePooling2D()(x))
    made = et.ElasticModel.from_model(tf.keras.Model(inputs, L.Dense(3, name="head")(x)))
    made.compile(optimizer, SCE, **compiled)
    return made


def batch(count=8):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 12, 12, 3)).astype(np.float32), np.arange(count) % 3


def layer_of(tensor):
    return tensor.name.split("/")[0]


def plan(made, r, *names):
    where = [layer_of(t) in names and "bias" not in t.name for t in made.tensors]
    return et.Plan.full(len(made.tensors)).filtered(r, np.array(where))


def test_a_step_takes_the_filtered_gradients_and_all_others_follow_from_them():
    made, (x, y) = model(), batch()
    made.set_plan(plan(made, 2, "groups"))
    names = [tensor.name for tensor in made.tensors]
    before = dict(zip(names, [tensor.numpy() for tensor in made.tensors]))
    point, groups, hidden, head = map(made.get_layer, ("point", "groups", "hidden", "head"))
    inside = tf.keras.Model(made.input, made.get_layer("depthwise").output)(x)
    between = point(inside)
    with tf.GradientTape() as tape:
        outputs = groups(between)
        tape.watch(outputs)
        loss = SCE(y, head(hidden(tf.reduce_mean(outputs, [1, 2]))))
    of_x, of_kernel = gradients(between, groups.kernel, tape.gradient(loss, outputs), 2)
    with tf.GradientTape() as tape:
        y_point = point(inside)
    of_point = tape.gradient(y_point, point.trainable_variables, output_gradients=of_x)
    made.fit(x, y, batch_size=8, verbose=0)
    for name, expected in (("groups", of_kernel), ("point", of_point[0])):
        name = f"{name}/kernel:0"
        moved = before[name] - made.tensors[names.index(name)].numpy()
        np.testing.assert_allclose(moved, 0.01 * expected, rtol=1e-3, atol=1e-7)


def test_no_convolution_is_left_in_the_backward_pass_of_filtered_layers():
    made, data = model(), batch()
    chosen = plan(made, 2, "first", "depthwise", "point", "groups")
    _, found = backward(made, chosen, data)
    assert not found


def test_filtering_ends_with_the_step_and_changes_no_forward_pass():
    made, (x, y) = model(), batch()
    before = made.predict(x, verbose=0)
    made.set_plan(plan(made, 2, "first", "depthwise", "groups"))
    loss = made.train_on_batch(x, y)
    np.testing.assert_allclose(loss, SCE(y, before), rtol=1e-6)
    for layer in made.layers:
        assert not {"call", "convolution_op", "_jit_compiled_convolution_op"} & set(vars(layer))


@pytest.mark.parametrize(
    ("frozen", "filtered"),
    # an exact kernel is the first that is trained, a filtered one, one behind a rectifier
    [(4, ["groups"]), (5, ["groups"]), (2, ["depthwise", "groups"])],
)
@pytest.mark.filterwarnings("error:Every step runs the whole forward pass")
def test_filtered_steps_take_what_lies_before_them_from_the_samples(frozen, filtered):
    def made():
        found = model()
        modes = plan(found, 2, *filtered).modes.copy()
        modes[:frozen] = 0
        found.set_plan(et.Plan(modes))
        return found

    assert_kept_alike(made, batch(16))


def test_a_mode_that_a_tensor_cannot_have_is_refused():
    made = model()
    with pytest.raises(ValueError, match=r"filtered:2' for 'head/kernel:0'"):
        made.set_plan(plan(made, 2, "head"))
    with pytest.raises(ValueError, match="outputs are known to have at least 7 pixels a side"):
        made.set_plan(plan(made, 7, "point"))


def axis_of(tensor):
    """Of the channels of a kernel."""
    return 2 if layer_of(tensor) == "depthwise" else tensor.shape.rank - 1


def some(made, parts, *names, seed=0):
    """Some channels of the named kernels, everything else exact."""
    rng, chosen = np.random.default_rng(seed), {}
    for k, tensor in enumerate(made.tensors):
        if layer_of(tensor) in names and "bias" not in tensor.name:
            most = tensor.shape[axis_of(tensor)]
            chosen[k] = rng.permutation(most)[: most // parts]
    return et.Plan.full(len(made.tensors)).with_channels(f"channels:1/{parts}", chosen)


def held(made, k):
    """A kernel and its slots."""
    inner = optimizers.unwrapped(made.optimizer)
    at = stack.index_of(inner, made.tensors[k])
    lists = (getattr(inner, name, None) for name in ("momentums", "_momentums", "_velocities"))
    slots = [stack.raw(slots[at]) for slots in lists if slots]
    return [made.tensors[k], *(slot for slot in slots if slot.shape.rank)]


K = tf.keras.optimizers
OPTIMIZERS = {
    "adam": lambda: K.Adam(0.01, weight_decay=0.1, amsgrad=True),
    "momentum": lambda: K.SGD(0.1, 0.9, nesterov=True, global_clipnorm=1.0),
    "sgdw": lambda: et.optimizers.sgdw(0.1),
    "fused adam": lambda: et.optimizers.adam(0.01),
    "loss scale": lambda: tf.keras.mixed_precision.LossScaleOptimizer(K.SGD(0.1, 0.9)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_channels_train_as_in_exact_training_and_the_others_keep_every_bit(kind):
    made, exact = (model(OPTIMIZERS[kind](), run_eagerly=True) for _ in range(2))
    for either in (made, exact):
        either.train_on_batch(*batch(4))  # so that all slots are under way
    chosen = some(made, 2, "first", "depthwise", "point", "hidden")
    made.set_plan(chosen)
    before = {k: [v.numpy() for v in held(made, k)] for k in chosen.channels}
    for either in (made, exact):
        either.train_on_batch(*batch(4))
    for k, channels in chosen.channels.items():
        assert len(before[k]) > 1
        for variable, reference, old in zip(held(made, k), held(exact, k), before[k]):
            axis, value = axis_of(made.tensors[k]), variable.numpy()
            others = (np.delete(part, channels, axis) for part in (value, old))
            np.testing.assert_array_equal(*others)
            found, same = (part.take(channels, axis) for part in (value, reference.numpy()))
            assert (found != 0).any()
            if kind != "momentum":  # whose norm is that of all gradients
                np.testing.assert_allclose(found, same, rtol=2e-4, atol=2e-6)


def backward(made, chosen, data):
    """The graph of a step, and the convolutions of its backward pass."""
    optimizers.build(made.optimizer, made.trainable_variables)
    graph = StepFunction(made, chosen).graph(data)
    return graph, [op for op in graph.get_operations() if "Backprop" in op.type]


def test_the_traced_weight_gradient_has_the_chosen_channels_alone():
    made, data, parts = model(), batch(), 4
    graph, found = backward(made, some(made, parts, "first", "depthwise", "point"), data)
    shapes = {tuple(op.outputs[0].shape) for op in found if "Filter" in op.type}
    expected = {(1, 1, 16, 12 // parts), (3, 3, 3, 8 // parts), (3, 3, 8 // parts, 2)}
    assert shapes - {(3, 3, 6, 12)} == expected  # beside that of the groups
    exact, _ = backward(made, None, data)
    sizes = 27 * 8 + 9 * 16 + 16 * 12  # of the kernels; 8 images of 6 x 6 pixels
    saved = (graph_flops(exact) - graph_flops(graph)) / (1 - 1 / parts)
    assert 0 <= saved - 2 * 8 * 36 * sizes <= 20 * sizes  # and updates


def test_other_channels_need_no_new_trace():
    names = "first", "depthwise", "point", "hidden"
    made, data = model("adam"), batch(4)
    made.set_plan(some(made, 4, *names))
    made.fit(*data, verbose=0)
    function, other = made.train_tf_function, some(made, 4, *names, seed=1)
    before = [tensor.numpy() for tensor in made.tensors]
    made.set_plan(other)
    made.fit(*data, verbose=0)
    for k, channels in other.channels.items():
        moved = np.moveaxis(before[k] != made.tensors[k].numpy(), axis_of(made.tensors[k]), 0)
        found = np.flatnonzero(moved.reshape(len(moved), -1).any(axis=1))
        assert len(found) and {*found} <= {*channels}
    assert made.train_tf_function is function
    assert function.experimental_get_tracing_count() == 1
