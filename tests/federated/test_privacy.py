"""Flower's secure aggregation and differential privacy around our clients."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs pip install "elastic_tf[fleet]"')

import flwr.server.workflow as workflows
from fleets import DEVICES, fleet, network, pictures
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import LocalDpMod
from flwr.common import ndarrays_to_parameters
from flwr.proto.node_pb2 import NodeInfo
from flwr.server import LegacyContext, ServerConfig
from flwr.server import strategy as older

from elastic_tf import federated


def securely(model, **config):
    """A round of SecAgg+: the weights after it, and the errors of clients."""
    grid, errors = fleet(model, mods=[secaggplus_mod, federated.masked]), []
    send = grid.send_and_receive

    def listening(messages, timeout=None):
        answers = send(messages, timeout=timeout)
        errors.extend(one.error.reason for one in answers if one.has_error())
        return answers

    grid.send_and_receive = listening
    grid.get_nodes = lambda: [NodeInfo(node_id=node) for node in grid.get_node_ids()]
    strategy = older.FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=DEVICES,
        min_available_clients=DEVICES,
        on_fit_config_fn=lambda server_round: config,
        initial_parameters=ndarrays_to_parameters(model.get_weights()),
    )
    context = Context(1, 1, {}, RecordDict(), {})
    context = LegacyContext(context, ServerConfig(num_rounds=1), strategy)
    secure = workflows.SecAggPlusWorkflow(3, 2, max_weight=30.0)
    workflows.DefaultWorkflow(fit_workflow=secure)(grid, context)
    return context.state.array_records["parameters"].to_numpy_ndarrays(), errors


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dense_answers_add_up_under_masks():
    model = network()
    strategy, arrays = federated.FedElastic(), ArrayRecord(model.get_weights())
    config = ConfigRecord({"seconds": 30.0, "dense": True, "server-round": 0})
    grid = fleet(model)
    answers = grid.send_and_receive(strategy.configure_train(0, arrays, config, grid))
    plain, _ = strategy.aggregate_train(1, answers)
    moved = 0.0
    found, _ = securely(model, seconds=30.0, dense=True)
    for old, one, other in zip(model.get_weights(), plain.to_numpy_ndarrays(), found):
        np.testing.assert_allclose(other, one, atol=2e-5)  # of 2^22 steps from -8 to 8
        moved = max(moved, np.abs(other - old).max())
    assert moved > 1e-3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sparse_answers_are_refused_by_a_clear_word():
    _, errors = securely(network())
    assert errors and all("Set dense=True" in one for one in errors)


def test_local_differential_privacy_of_flower_clips_and_adds_noise():
    model = network()
    mod = LocalDpMod(clipping_norm=0.1, sensitivity=1e-6, epsilon=1.0, delta=1e-5)
    grid = fleet(model, mods=[mod])
    strategy = federated.FedElastic(fraction_evaluate=0.0)
    arrays = ArrayRecord(model.get_weights())
    result = strategy.start(grid, arrays, 1, train_config=ConfigRecord({"dense": True}))
    pairs = zip(result.arrays.to_numpy_ndarrays(), model.get_weights())
    moved = np.sqrt(sum(((new - old) ** 2).sum() for new, old in pairs))
    assert 0.0 < moved <= 0.11


def test_no_image_and_no_label_leaves_a_device():
    """Arrays of answers have the shapes of weights and of sums, and none that of samples."""
    model, grid = network(), fleet(network())
    arrays = ArrayRecord(model.get_weights())
    strategy = federated.FedElastic()
    federated.solve_head(strategy, grid, arrays)
    held = [one.content for one in grid.answers]
    strategy.start(grid, arrays, 1)
    shapes = {
        array.numpy().shape
        for content in [*held, *(one.content for one in grid.answers)]
        for record in content.array_records.values()
        for array in record.values()
    }
    assert not any(shape and shape[0] == len(pictures(1)[0]) for shape in shapes)
