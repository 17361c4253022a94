"""Filtered gradients: against a loop over patches, and where they must be exact."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tf.engine.modes.filtering import filtered_gradients


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
    for found, expected in zip(filtered_gradients(*given_), by_loops(*given_)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def exact(x, kernel, upstream):
    x, kernel = tf.constant(x), tf.constant(kernel)
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv2d(x, kernel, 1, "SAME")
    return tape.gradient(y, [x, kernel], output_gradients=tf.constant(upstream))


def by_patches(upstream, r):
    """The mean of each patch at all of its pixels."""
    found = upstream.copy()
    for i in range(0, upstream.shape[1], r):
        for j in range(0, upstream.shape[2], r):
            part = found[:, i : i + r, j : j + r]
            part[:] = part.mean((1, 2), keepdims=True)
    return found


@pytest.mark.parametrize(("size", "r"), [(8, 2), (7, 2), (9, 4), (7, 5)])
def test_a_kernel_of_one_pixel_gets_the_exact_gradients_of_patch_means(size, r):
    x, kernel, upstream = drawn(0, (2, size, size, 3), (1, 1, 3, 4), (2, size, size, 4))
    expected = exact(x, kernel, by_patches(upstream, r))
    for found, one in zip(filtered_gradients(x, kernel, upstream, r), expected):
        np.testing.assert_allclose(found, one, rtol=1e-9, atol=1e-9)


def test_the_middle_of_a_kernel_is_exact_and_the_sum_by_the_inputs_is_kept():
    x, kernel, upstream = drawn(1, (2, 8, 8, 3), (3, 3, 3, 4), (2, 8, 8, 4))
    upstream = by_patches(upstream, 4)
    of_x, of_kernel = filtered_gradients(x, kernel, upstream, 4)
    exact_x, exact_kernel = exact(x, kernel, upstream)
    np.testing.assert_allclose(of_kernel[1, 1], exact_kernel[1, 1], rtol=1e-9)
    # where the kernel's window stays in one patch
    inside = np.ix_(range(2), [1, 2, 5, 6], [1, 2, 5, 6], range(3))
    np.testing.assert_allclose(of_x.numpy()[inside], exact_x.numpy()[inside], rtol=1e-9)
    upstream[:, [0, -1]] = upstream[:, :, [0, -1]] = 0.0
    of_x, _ = filtered_gradients(x, kernel, upstream, 2)
    np.testing.assert_allclose(tf.reduce_sum(of_x), tf.reduce_sum(exact(x, kernel, upstream)[0]))


@pytest.mark.parametrize("s", [1, 2])
def test_constant_inputs_get_the_exact_kernel_gradient_away_from_the_border(s):
    _, kernel, upstream = drawn(2, (1,), (3, 3, 2, 4), (2, 8 // s, 8 // s, 4))
    x = np.ones((2, 8, 8, 2))
    upstream[:, [0, -1]] = upstream[:, :, [0, -1]] = 0.0
    with tf.GradientTape() as tape:
        weight = tf.Variable(kernel)
        y = tf.nn.conv2d(x, weight, s, "SAME")
    expected = tape.gradient(y, weight, output_gradients=tf.constant(upstream))
    _, found = filtered_gradients(x, kernel, upstream, 2, s)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": 9}, "at most 8"),
        ({"r": 0}, "at least 1. Received: 0"),
        ({"padding": "same"}, "SAME"),
        ({"upstream": np.ones((2, 8, 8, 5))}, r"\(2, 8, 8, 5\)"),
        ({"kernel": np.ones((3, 3))}, "two dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    given_ = {
        "x": np.ones((2, 8, 8, 3)),
        "kernel": np.ones((3, 3, 3, 4)),
        "upstream": np.ones((2, 8, 8, 4)),
        "r": 2,
    }
    with pytest.raises(ValueError, match=message):
        filtered_gradients(**{**given_, **change})
