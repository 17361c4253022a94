import pytest

from elastic_tf.app.commands import forecast

WORDS = "--model digits_resnet --input-size 16 --batch-size 4 --epochs 2 --rho 0.6 --images"


def test_a_table_of_three_ways_is_printed(capsys):
    forecast.main([*WORDS.split(), "10"])
    titles, *lines = capsys.readouterr().out.splitlines()
    assert titles.split() == ["training", "tensors", "images", "epochs", "seconds", "MiB"]
    rows = {name: line.split() for line in lines for name in WAYS if line.startswith(name)}
    # two batches of four; both weights of the head, all of two blocks and the head
    assert rows["head alone"][2:5] == ["2", "8", "0"]
    assert rows["full"][1:4] == ["8", "16", "2"]
    assert rows["elastic, rho=0.6"][3:5] == ["16", "2"]


WAYS = ("head alone", "elastic, rho=0.6", "full")


def test_images_and_classes_are_those_of_the_data(tmp_path, capsys):
    for name in ("cat", "dog", "newt"):
        (tmp_path / name).mkdir()
        for k in range(10):  # of which two are for tests
            (tmp_path / name / f"{k}.png").write_bytes(b"not looked at")
    said, given = [], "--model mobilenet --input-size 32 --alpha 0.25 --batch-size 4 --epochs 2"
    for more in (f"--data {tmp_path}", "--images 24 --classes 3"):
        forecast.main([*given.split(), *more.split()])
        said.append([line.split()[-3:] for line in capsys.readouterr().out.splitlines()[2:]])
    assert [[row[0], row[2]] for row in said[0]] == [[row[0], row[2]] for row in said[1]]
    with pytest.raises(ValueError, match="One of `data` and `images`"):
        forecast.main(["--model", "mobilenet"])


def test_a_batch_of_more_than_the_images_is_refused():
    with pytest.raises(ValueError, match="`batch_size`.*Received: 4"):
        forecast.main([*WORDS.split(), "3"])
