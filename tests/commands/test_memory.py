import json

import pytest
import tensorflow as tf

from elastic_tf.app.commands import forecast, memory, profile

WORDS = "--model digits_resnet --input-size 28 --classes 10 --batch-size 8".split()


def step(path, *words):
    """The step with these words, as numbers."""
    memory.main([*WORDS, *words, "--out", str(path)])
    return json.loads(path.read_text())


def test_the_table_and_the_verdict_say_the_same_as_the_numbers(capsys, tmp_path):
    peak = step(tmp_path / "step.json")["peak"]
    assert step(tmp_path / "last.json", "--last", "2")["peak"] < peak
    memory.main([*WORDS, "--limit", str(peak), "--out", str(tmp_path / "step.png")])
    said = capsys.readouterr().out
    assert f"TensorFlow takes {peak / 2**20:.1f} MiB" in said
    assert "it fits; the largest batch that does is 8" in said
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    memory.main([*WORDS, "--limit", str(peak - 1)])
    assert "it does not fit; the largest batch that does is 7" in capsys.readouterr().out
    memory.main([*WORDS, "--limit", "10 KiB"])
    assert "it does not fit; no batch does" in capsys.readouterr().out


def test_a_network_of_ones_own_is_taken(capsys, tmp_path):
    L, file = tf.keras.layers, tmp_path / "mine.keras"
    layers = [L.Conv2D(4, 3), L.GlobalAveragePooling2D(), L.Dense(7)]
    tf.keras.Sequential([L.Input((None, None, 3)), *layers]).save(file)
    words = f"--model {file} --input-size 16 --batch-size 4".split()
    profile.main([*words, "--classes", "2", "--out", f"{tmp_path}/times.json"])
    assert "4 tensors" in capsys.readouterr().out
    tf.keras.Sequential([L.Input((16, 16, 3)), *layers]).save(file)
    forecast.main([*words, "--images", "12"])
    assert "head alone" in capsys.readouterr().out
    memory.main(words)
    assert "Batch 4: TensorFlow takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"), [("--limit 12MB", "limit='12MB'"), ("--last 0", "Received: 0")]
)
def test_wrong_words_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        memory.main([*WORDS, *words.split()])
