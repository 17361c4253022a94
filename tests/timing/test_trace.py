import numpy as np
import pytest
import tensorflow as tf
from networks import crossentropy, images, network

from elastic_tf.model import ElasticModel
from elastic_tf.timing import trace as trace_module
from elastic_tf.timing.trace import StepFunction, trace_step, wall_clock_shares


@pytest.mark.parametrize(
    ("spans", "shares"),
    [
        ([[0, 4]], [4]),
        ([[0, 4], [4, 6]], [4, 2]),
        ([[0, 4], [0, 4]], [2, 2]),
        ([[0, 4], [2, 6]], [3, 3]),
        ([[0, 10], [2, 4], [2, 4]], [8 + 2 / 3, 2 / 3, 2 / 3]),
        ([[0, 1], [5, 6]], [1, 1]),
        ([], []),
    ],
)
def test_wall_clock_shares_split_the_time_of_overlapping_events(spans, shares):
    found = wall_clock_shares(np.array(spans, np.float64).reshape(-1, 2))
    np.testing.assert_allclose(found, shares)


def test_trace_step_leaves_out_what_ran_beside_a_step(monkeypatch):
    """Garbage that Python collects meanwhile is executed by TensorFlow too, and told by it."""
    profiled = trace_module._profile

    def beside(run, repeats):
        names, spans, _ = profiled(run, repeats)
        foreign = ["once", *["always"] * repeats]
        added = np.array([[0.0, 500.0], *[[0.0, 7.0]] * repeats])
        names = np.append(names, np.array(foreign, object))
        return names, np.concatenate([spans, added]), False

    monkeypatch.setattr(trace_module, "_profile", beside)
    model = ElasticModel.from_model(network())
    model.compile(tf.keras.optimizers.SGD(0.1), crossentropy())
    data = tuple(tf.constant(part[:8]) for part in images())
    trace = trace_step(StepFunction(model, np.ones(len(model.tensors), bool)), data, repeats=3)
    assert trace.time_unmatched == pytest.approx(7.0)
