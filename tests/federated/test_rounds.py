"""Rounds of devices that train different tensors, by Flower's own messages, without Ray."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs pip install "elastic_tf[fleet]"')

from fleets import DEVICES, fleet, network
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from elastic_tf import federated
from elastic_tf.federated import board

SECONDS = {"seconds": 30.0}


def started(strategy, grid, model, rounds=1, arrays=None, **config):
    arrays = ArrayRecord(model.get_weights()) if arrays is None else arrays
    return strategy.start(grid, arrays, rounds, train_config=ConfigRecord(config))


def assert_close(one, other, rtol=1e-6, atol=1e-7):
    """Two results have the same weights."""
    for pair in zip(one.arrays.to_numpy_ndarrays(), other.arrays.to_numpy_ndarrays()):
        np.testing.assert_allclose(*pair, rtol=rtol, atol=atol)


def answers_of_training(model, strategy, number=1, config=(), **options):
    grid = fleet(model, **options)
    arrays = ArrayRecord(model.get_weights())
    messages = strategy.configure_train(number, arrays, ConfigRecord(dict(config)), grid)
    return {one.metadata.src_node_id: one for one in grid.send_and_receive(messages)}


def test_each_device_trains_the_last_tensors_that_its_time_allows():
    model = network()
    given = answers_of_training(model, federated.FedElastic(), config=SECONDS)
    trained = {node: sorted(map(int, one.content["arrays"])) for node, one in given.items()}
    planned = {node: one.content["metrics"]["planned-seconds"] for node, one in given.items()}
    assert trained[1] == [0, 1, 2, 3, 4, 5]
    assert all(trained[k][-1] == 5 for k in trained)
    assert [len(trained[k]) for k in (1, 2, 3, 4)] == sorted(map(len, trained.values()))[::-1]
    assert len(trained[4]) < len(trained[2]) < 6
    assert max(planned.values()) <= 30.0


def test_the_rate_falls_over_the_rounds(monkeypatch):
    model, seen = network(), []
    fit = type(model).fit

    def noted(self, *given, **options):
        seen.append(float(np.asarray(self.optimizer.learning_rate)))
        return fit(self, *given, **options)

    monkeypatch.setattr(type(model), "fit", noted)
    for number in (1, 2, 3):
        rate = {"rate": 1e-3, "rounds": 3}
        answers_of_training(model, federated.FedElastic(), number, rate)
    expected = np.repeat([1e-3, 0.75e-3, 0.25e-3], DEVICES)
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    assert board.rate_in({"rate": 0.1, "server-round": 7}) == 0.1


def test_a_tensor_is_averaged_over_those_who_trained_it_by_their_samples():
    model, strategy = network(), federated.FedElastic()
    given = answers_of_training(model, strategy, config=SECONDS)
    base = model.get_weights()
    new, _ = strategy.aggregate_train(1, given.values())
    for k, old in enumerate(base):
        of = [one for one in given.values() if str(k) in one.content["arrays"]]
        counts = [one.content["metrics"]["num-examples"] for one in of]
        values = [one.content["arrays"][str(k)].numpy() for one in of]
        expected = np.average(values, axis=0, weights=counts) if of else old
        np.testing.assert_allclose(new[str(k)].numpy(), expected, rtol=1e-5, atol=1e-7)


def test_dense_answers_give_bit_for_bit_what_fedavg_of_flower_gives():
    results = []
    for strategy in (FedAvg(fraction_evaluate=0.0), federated.FedElastic(fraction_evaluate=0.0)):
        model = network()
        results.append(started(strategy, fleet(model), model, dense=True))
    assert_close(*results)


@pytest.mark.parametrize("down", ["float32", "float16", "int8"])
def test_what_the_server_sends_need_not_be_all_and_answers_are_to_what_came(down):
    model = network()
    grid = fleet(model)
    strategy = federated.FedElastic(fraction_evaluate=0.0)
    result = started(strategy, grid, model, rounds=3, down=down, dtype="int8", seconds=30.0)
    first, last = dict(grid.down[:DEVICES]), dict(grid.down[-DEVICES:])
    assert max(first.values()) < 200 < max(last.values())
    assert len(result.train_metrics_clientapp) == 3
    assert all(up > 0 for _, up in grid.up)


def test_devices_with_other_initial_weights_are_told_so(caplog):
    model = network()
    other = ArrayRecord([value + 0.1 for value in model.get_weights()])
    started(federated.FedElastic(), fleet(model), model, arrays=other, down="float16")
    assert "must have the weights that the server began with" in caplog.text


def test_rounding_loses_nothing_over_rounds():
    """The sum of all answers is the sum of all changes, but for one residual."""
    rng = np.random.default_rng(0)
    base, true, received, left = [np.zeros((6, 5), np.float32)], 0.0, 0.0, {}
    for _ in range(50):
        new = [rng.normal(size=(6, 5)).astype(np.float32)]
        record, left = board.packed(new, base, "int8", left)
        true += new[0]
        received += board.unpacked(record, base)[0]
    np.testing.assert_allclose(received + left[0], true, atol=1e-4)
    assert np.abs(left[0]).max() <= 4.0 / 127


def test_small_answers_are_small():
    base, sizes = network().get_weights(), {}
    for dtype in board.DTYPES:
        record, _ = board.packed([value + 1.0 for value in base], base, dtype)
        sizes[dtype] = sum(array.numpy().nbytes for array in record.values())
    assert sizes["int8"] < 0.5 * sizes["float32"] and sizes["float16"] < 0.75 * sizes["float32"]


def test_adam_at_the_server_moves_by_the_average_change():
    model = network()
    strategy = federated.FedElasticAdam(fraction_evaluate=0.0, eta=1e-2)
    result = started(strategy, fleet(model), model, rounds=2, seconds=30.0)
    pairs = zip(result.arrays.to_numpy_ndarrays(), model.get_weights())
    moved = [np.abs(new - old).max() for new, old in pairs]
    assert 1e-4 < max(moved) < 0.1
    assert len(result.train_metrics_clientapp) == 2  # both rounds had good answers


def test_too_few_seconds_for_a_step_are_an_error_for_that_device_alone(caplog):
    model = network()
    result = started(federated.FedElastic(), fleet(model), model, seconds=10.0)
    assert "must last for a step. Received: seconds=10, of which 10 are left" in caplog.text
    assert len(result.arrays)


def test_less_memory_trains_less():
    counts = []
    for memory in ("1 GiB", 6_500):
        given = answers_of_training(network(), federated.FedElastic(), memory=memory)
        counts.append(sum(len(one.content["arrays"]) for one in given.values()))
    assert counts[0] == 6 * DEVICES > counts[1] > 0


def changed(node, change):
    """What a wrong client of this number would answer."""

    def altered(source, answer):
        if source == node and "arrays" in answer.content:
            given = {k: v.numpy().copy() for k, v in answer.content["arrays"].items()}
            given = change(given, answer.content["config"])
            if given is None:
                return None
            answer.content["arrays"] = ArrayRecord({k: Array(v) for k, v in given.items()})
        return answer

    return altered


def nan(arrays, config):
    arrays["5"][0] = np.nan
    return arrays


WRONG = {
    "not finite": nan,
    "of shape": lambda arrays, config: {**arrays, "5": np.zeros(7, np.float32)},
    "'17', for a network of 6": lambda arrays, config: {**arrays, "17": np.zeros(3, np.float32)},
    "other weights, feed": lambda arrays, config: config.update({"base": "feed"}) or arrays,
    "no answer: node 2": lambda arrays, config: None,
    "float64": lambda arrays, config: {k: v.astype(np.float64) for k, v in arrays.items()},
}


@pytest.fixture(scope="module")
def without_the_second():
    """A round in which one device does not answer."""
    grid = fleet(network(), lambda node, answer: None if node == 2 else answer)
    return started(federated.FedElastic(fraction_evaluate=0.0), grid, network())


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_answer_is_left_out_and_the_log_says_why(said, caplog, without_the_second):
    strategy = federated.FedElastic(fraction_evaluate=0.0)
    result = started(strategy, fleet(network(), changed(2, WRONG[said])), network())
    assert said in caplog.text and caplog.text.count("Left out") == 1
    assert_close(result, without_the_second)


def test_a_round_without_a_good_answer_changes_nothing():
    model = network()
    grid = fleet(model, lambda node, answer: None)
    result = started(federated.FedElastic(fraction_evaluate=0.0), grid, model)
    np.testing.assert_equal(result.arrays.to_numpy_ndarrays(), model.get_weights())


def test_a_killed_server_goes_on_from_its_last_round(tmp_path):
    """Killed while round 3 is on its way: what comes out is what would have come out."""
    kind = federated.FedElasticAdam
    whole = started(kind(fraction_evaluate=0.0), fleet(network()), network(), rounds=4)
    model, file = network(), tmp_path / "rounds.safetensors"
    grid = fleet(model)
    send, calls = grid.send_and_receive, []

    def killed(messages, timeout=None):
        calls.append(1)
        if len(calls) == 5:  # training and evaluation are a call each
            raise KeyboardInterrupt
        return send(messages, timeout=timeout)

    grid.send_and_receive = killed
    arrays = ArrayRecord(model.get_weights())
    first, second = (kind(fraction_evaluate=0.0) for _ in range(2))
    first.scale = 2.5  # of the head that it began with
    with pytest.raises(KeyboardInterrupt):
        first.start(grid, arrays, 4, backup=file)
    rounds = []
    result = second.start(
        fleet(network()), arrays, 4, backup=file, evaluate_fn=lambda k, _: rounds.append(k)
    )
    assert (rounds, second.scale) == ([2, 3, 4], 2.5)
    assert len(whole.train_metrics_clientapp) == 4
    assert_close(result, whole, rtol=1e-4, atol=1e-5)


def test_a_backup_of_another_network_is_refused(tmp_path):
    file = tmp_path / "rounds.safetensors"
    model, other = network(), network(units=4)
    strategy = federated.FedElastic(fraction_evaluate=0.0)
    strategy.start(fleet(model), ArrayRecord(model.get_weights()), 0, backup=file)
    with pytest.raises(ValueError, match=r"weight 4 is \(12, 3\) instead of \(12, 4\)"):
        federated.FedElastic().start(fleet(other), ArrayRecord(other.get_weights()), 1, backup=file)
    file.write_bytes(b"no backup")
    with pytest.raises(ValueError, match="no backup|SafetensorError"):
        federated.FedElastic().start(fleet(other), ArrayRecord(other.get_weights()), 1, backup=file)
