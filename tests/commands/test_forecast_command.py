import pytest

from elastic_tf.app.commands import forecast

WORDS = "--model digits_resnet --input-size 16 --batch-size 4 --epochs 2 --rho 0.6".split()
WAYS = ("head alone", "elastic, rho=0.6", "full")


def table(capsys, *more):
    """The titles that are printed, and the words of the row of each way."""
    forecast.main([*WORDS, *map(str, more)])
    titles, *lines = capsys.readouterr().out.splitlines()
    return titles, {name: line.split() for line in lines for name in WAYS if line.startswith(name)}


def test_a_table_of_three_ways_is_printed(capsys):
    titles, rows = table(capsys, "--images", 10)
    assert titles.split() == ["training", "tensors", "images", "epochs", "seconds", "MiB"]
    # two batches of four; both weights of the head, all of two blocks and the head
    assert rows["head alone"][2:5] == ["2", "8", "0"]
    assert rows["full"][1:4] == ["8", "16", "2"]
    assert rows["elastic, rho=0.6"][3:5] == ["16", "2"]


def test_images_and_classes_are_those_of_the_data(tmp_path, capsys):
    for name in ("cat", "dog", "newt"):
        (tmp_path / name).mkdir()
        for k in range(10):  # of which two are for tests
            (tmp_path / name / f"{k}.png").write_bytes(b"not looked at")
    _, found = table(capsys, "--data", tmp_path)
    _, expected = table(capsys, "--images", 24, "--classes", 3)
    for name in WAYS:  # but for the seconds
        assert found[name][:-2] + found[name][-1:] == expected[name][:-2] + expected[name][-1:]
    with pytest.raises(ValueError, match="One of `data` and `images`"):
        forecast.main(["--model", "mobilenet"])


def test_a_batch_of_more_than_the_images_is_refused():
    with pytest.raises(ValueError, match="`batch_size`.*Received: 4"):
        forecast.main([*WORDS, "--images", "3"])
