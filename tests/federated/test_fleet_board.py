"""A device without TensorFlow answers a round of devices that have it."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from pages import ROOT

pytest.importorskip("flwr", reason='needs pip install "elastic_tf[fleet]"')

from flower_here import Here
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp

from elastic_tf import federated
from elastic_tf.federated import board
from elastic_tf.lite.trainer import Trainer

DEMO = ROOT / "experiments" / "lite_demo"


@pytest.fixture
def trainer(tmp_path):
    shutil.copytree(DEMO, tmp_path / "digits")
    return Trainer(tmp_path / "digits", interpreter=tf.lite.Interpreter, threads=1)


def rounds(trainer, **config):
    """Two boards of half of the digits each; what the server has before and after."""
    found = np.load(DEMO / "digits.npz")
    x, y = (found[name][:64] for name in ("x", "y"))
    app = ClientApp()

    @app.train()
    def train(message, context):
        rows = slice(context.node_id - 1, None, 2)
        return board.train(message, context, trainer, x[rows], y[rows])

    grid = Here(app, [{}, {}])
    before = [trainer.weights[k].copy() for k in sorted(trainer.weights)]
    options = {"train_config": ConfigRecord(config)}
    strategy = federated.FedElastic(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(before), 2, **options)
    return grid, before, result


@pytest.mark.parametrize("config", [{}, {"down": "float16", "dtype": "int8"}])
def test_a_board_trains_and_answers_with_what_changed_and_is_as_exported(trainer, config):
    grid, before, result = rounds(trainer, **config)
    after = result.arrays.to_numpy_ndarrays()
    assert all(up > 0 for _, up in grid.up)
    assert all((one != other).any() for one, other in zip(before, after))
    losses = [one["loss"] for one in result.train_metrics_clientapp.values()]
    assert losses[1] < losses[0]
    np.testing.assert_equal(list(trainer.weights.values()), before)


def test_a_board_without_time_trains_its_cheapest_plan(trainer):
    _, before, result = rounds(trainer, seconds=0.0)
    after = result.arrays.to_numpy_ndarrays()
    changed = [k for k, pair in enumerate(zip(before, after)) if (pair[0] != pair[1]).any()]
    assert changed == trainer.plans[0]["tensors"]
