from __future__ import annotations

import json

import pytest

from elastic_tf.commands import memory

WORDS = "--model digits_resnet --input-size 28 --classes 10 --batch-size 8".split()


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Peaks of training everything, and the last two tensors."""
    folder, found = tmp_path_factory.mktemp("steps"), []
    for more in ([], ["--last", "2"]):
        memory.main([*WORDS, *more, "--out", str(folder / "step.json")])
        found.append(json.loads((folder / "step.json").read_text())["peak"])
    return found


def test_training_less_takes_less(peaks):
    assert peaks[1] < peaks[0]


def test_the_table_and_the_verdict_say_the_same_as_the_numbers(peaks, capsys, tmp_path):
    memory.main([*WORDS, "--limit", str(peaks[0]), "--out", str(tmp_path / "step.png")])
    said = capsys.readouterr().out
    assert f"TensorFlow takes {peaks[0] / 2**20:.1f} MiB" in said
    assert "it fits; the largest batch that does is 8" in said
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_is_said(peaks, capsys):
    memory.main([*WORDS, "--limit", str(peaks[0] - 1)])
    assert "it does not fit; the largest batch that does is 7" in capsys.readouterr().out
    memory.main([*WORDS, "--limit", "10 KiB"])
    assert "it does not fit; no batch does" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"), [("--limit 12MB", "limit='12MB'"), ("--last 0", "Received: 0")]
)
def test_wrong_words_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        memory.main([*WORDS, *words.split()])
