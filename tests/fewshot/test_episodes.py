import few_images
import numpy as np
import pytest
from related import tinytrain

ROWS = (np.arange(200), np.repeat(np.arange(8), 25))  # each image is its number


def test_an_episode_depends_on_its_number_and_the_seed_alone():
    one, same, other = (tinytrain.episodes(ROWS, seed=seed) for seed in (3, 3, 4))
    one[0]
    for first, second in zip(one[5], same[5]):
        np.testing.assert_array_equal(first, second)
    assert any(not np.array_equal(a, b) for a, b in zip(one[5], other[5]))
    assert np.array_equal(next(iter(one)).support, one[0].support)


def test_episodes_keep_to_their_limits():
    tasks = tinytrain.episodes(ROWS, (3, 5), support_limit=20, per_class_limit=6, query=4)
    ways, sizes = set(), set()
    for task, _ in zip(tasks, range(60)):
        way = len(task.classes)
        shots = np.bincount(task.support_labels, minlength=way)
        assert shots.min() >= 1 and shots.max() <= 6 and len(task.support) <= 20
        assert np.bincount(task.query_labels).tolist() == [4] * way
        assert not set(task.support) & set(task.query)
        for images, labels in (task[:2], task[2:4]):
            np.testing.assert_array_equal(task.classes[labels], ROWS[1][images])
        ways.add(way)
        sizes.add(len(task.support))
    assert ways == {3, 4, 5} and len(sizes) > 5


def test_the_most_classes_are_those_that_there_are():
    ways = {len(tinytrain.episodes(ROWS)[k].classes) for k in range(30)}
    assert ways == {5, 6, 7, 8}


def test_shots_are_equal_where_they_are_asked_for():
    task = tinytrain.episodes(ROWS, shots=3)[0]
    assert set(np.bincount(task.support_labels)) == {3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"way": (9, 9)}, "need 9 classes.*Received: `samples` of 8"),
        ({"query": 20, "shots": 6}, "26 images.*smallest of 25"),
        ({"query": 25}, "26 images.*smallest of 25"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tinytrain.episodes(ROWS, **options)


def test_what_is_no_labelled_images_is_refused():
    x, y = few_images.images()
    for labels, message in ((y[:-1], r"as many.*\(71,\)"), (np.full(72, 7), r"two.*7")):
        with pytest.raises(ValueError, match=message):
            tinytrain.episodes((x, labels))
