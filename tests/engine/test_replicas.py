"""Training over several replicas and workers gives what one process gives with the joint batch."""

from pathlib import Path

import numpy as np
import pytest
import worker

# The gradients of the shares are summed in another order than those of a joint batch.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def trained(folder: Path, kind: str, **options) -> list[dict[str, np.ndarray]]:
    """What each process of a training writes; one alone needs no process of its own."""
    if kind == "single":
        worker.main(kind, str(folder / "single.npz"), **options)
        return [dict(np.load(folder / "single.npz"))]
    places = [None] if kind != "multiworker" else worker.cluster()
    outs = [folder / f"{kind}{k}.npz" for k in range(len(places))]
    processes = [
        worker.start(kind, out, environment=place, **options) for out, place in zip(outs, places)
    ]
    for code, text in worker.finish(*processes):
        assert code == 0, text[-3000:]
    return [dict(np.load(out)) for out in outs]


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> dict[str, np.ndarray]:
    return trained(tmp_path_factory.mktemp("single"), "single")[0]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory) -> list[dict[str, np.ndarray]]:
    """A training, and one with filtered gradients, of the same process."""
    folder = tmp_path_factory.mktemp("mirrored")
    filtered = folder / "filtered.npz"
    return [*trained(folder, "mirrored", then_filtered=filtered), dict(np.load(filtered))]


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> list[dict[str, np.ndarray]]:
    return trained(tmp_path_factory.mktemp("workers"), "multiworker")


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(one["epochs"], two["epochs"])
    np.testing.assert_array_equal(one["masks"], two["masks"])
    np.testing.assert_allclose(one["importance"], two["importance"], rtol=1e-3, atol=1e-7)
    for name in one:
        if name.startswith("weight"):
            np.testing.assert_allclose(one[name], two[name], **CLOSE, err_msg=name)


@pytest.mark.slow
def test_two_devices_give_what_one_gives(single, mirrored):
    assert single["epochs"].tolist() == [0, 2, 4]
    assert 0 < single["masks"].sum() < single["masks"].size
    assert_same(single, mirrored[0])


@pytest.mark.slow
def test_two_devices_let_the_graphs_of_dropped_masks_go(mirrored):
    assert mirrored[0]["graphs_left"] == 0


@pytest.mark.slow
def test_two_devices_filter_gradients_as_one_does(mirrored, tmp_path):
    assert_same(trained(tmp_path, "single", filtered=2)[0], mirrored[1])


@pytest.mark.hours
def test_two_workers_give_what_one_process_gives(single, workers):
    assert_same(single, workers[0])


@pytest.mark.hours
def test_two_workers_have_the_same_masks_and_weights_bit_for_bit(workers):
    for name, value in workers[0].items():
        np.testing.assert_array_equal(value, workers[1][name], err_msg=name)


@pytest.mark.hours
@pytest.mark.parametrize("kind", ["single", "mirrored"])
def test_accumulated_micro_batches_give_what_the_joint_batch_gives(kind, single, tmp_path):
    (result,) = trained(tmp_path, kind, accumulate=2)
    assert_same(single, result)


@pytest.mark.hours
def test_a_process_that_died_goes_on_with_its_mask_and_its_interval(single, tmp_path):
    backup = tmp_path / "backup"
    died = worker.start("single", tmp_path / "died.npz", backup=backup, crash=3)
    assert worker.finish(died)[0][0] == 9
    (result,) = trained(tmp_path, "single", backup=backup)
    # the selection of epoch 2 holds in epoch 3, where the training goes on
    assert result["epochs"].tolist() == [2, 4]
    np.testing.assert_array_equal(result["masks"], single["masks"][1:])
    for name in single:
        if name.startswith("weight"):
            np.testing.assert_array_equal(result[name], single[name], err_msg=name)


@pytest.mark.hours
def test_a_worker_that_died_comes_back_and_all_go_on(workers, tmp_path):
    backup = tmp_path / "backup"
    places = worker.cluster()
    healthy = worker.start("multiworker", tmp_path / "0", environment=places[0], backup=backup)
    dying = worker.start(
        "multiworker", tmp_path / "1", environment=places[1], backup=backup, crash=3
    )
    assert worker.finish(dying)[0][0] == 9
    healthy.kill()  # the others cannot go on without it; a cluster starts all of them again
    healthy.communicate()
    results = trained(tmp_path, "multiworker", backup=backup)
    for result in results:
        assert result["epochs"].tolist() == [2, 4]
        np.testing.assert_array_equal(result["masks"], workers[0]["masks"][1:])
        np.testing.assert_allclose(result["weight0"], workers[0]["weight0"], **CLOSE)
