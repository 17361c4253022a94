"""Datasets of single samples become tensors without a second copy."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.train.samples import Growing, Samples

PEAK = """
import elastic_tf as et
import numpy as np, tensorflow as tf

def read(count):
    one = np.ones((32, 32, 4), np.float32)
    numbers = tf.data.Dataset.range(count)
    return et.Samples(numbers.map(lambda k: (one + tf.cast(k, tf.float32), k))).arrays[0]

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

read(1_000)
before = peak()
x = read(10_000)
print((peak() - before) / (x.shape.num_elements() * 4))
"""


@pytest.mark.hours
@pytest.mark.skipif(sys.platform != "linux", reason="other systems may copy an array that grows")
def test_a_dataset_takes_little_more_memory_than_its_samples():
    made = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 0.9 < float(made.stdout) < 1.2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "string"])
@pytest.mark.parametrize("shape", [(), (3,), (40, 50), (2, 0)])
def test_batches_become_what_they_are_together(dtype, shape):
    rng = np.random.default_rng(0)
    parts = [tf.cast(rng.normal(size=(n, *shape)) > 0.0, tf.int64) for n in (5, 200, 1, 300)]
    parts = [tf.as_string(p) if dtype == "string" else tf.cast(p, dtype) for p in parts]
    grown = Growing(parts[0])
    for part in parts:
        grown.add(part)
    found, expected = grown.tensor(), tf.concat(parts, 0)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert tf.reduce_all(found == expected)


def test_samples_stay_as_they_were_when_the_arrays_they_came_from_change():
    whole = np.ones(1_000 + 16, np.float32)
    start = -whole.ctypes.data % 64 // 4  # an address at which TensorFlow could share it
    x = whole[start : start + 1_000].reshape(100, 10)
    samples = Samples(x, np.zeros(100))
    x[:] = 2.0
    assert (samples.arrays[0].numpy() == 1.0).all()


@pytest.mark.parametrize("sizes", [(2, 3), (*[3] * 64, 2)])  # in the first batch, and after it
def test_samples_of_several_sizes_are_refused(sizes):
    spec = tf.TensorSpec((None,)), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(
        lambda: ((np.zeros(size), 0) for size in sizes), output_signature=spec
    )
    with pytest.raises(ValueError, match="sizes that differ, in .*Resize or pad them"):
        Samples(data, batch_size=2)
    with pytest.raises(ValueError, match=r"RaggedTensor of shape \(2, None\). Pad them"):
        Samples(tf.ragged.constant([[1.0, 2.0], [3.0]]), np.zeros(2), batch_size=2)
