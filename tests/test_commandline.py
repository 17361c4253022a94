from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional

import numpy as np
import pytest

from elastic_tf import baselines
from elastic_tf.commandline import option, parse, run
from elastic_tf.datasets import image_folder


@dataclasses.dataclass(frozen=True)
class Settings:
    folder: Path = option(help="where")
    count: int = option(3, help="how many")
    share: Optional[float] = option(None, help="how much")  # noqa: UP045
    kind: str = option("one", help="which", choices=("one", "two"))
    loud: bool = option(False, help="aloud")
    more: tuple[int, ...] = option((), help="others")


def test_parse_gives_each_field_its_type():
    words = ["--folder", "a/b", "--count", "7", "--share", "0.5", "--kind", "two", "--loud"]
    words += ["--more", "1", "2"]
    assert parse(Settings, "", words) == Settings(Path("a/b"), 7, 0.5, "two", True, (1, 2))


def test_parse_takes_the_defaults():
    assert parse(Settings, "", ["--folder", "x"]) == Settings(Path("x"), 3, None, "one", False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: --folder"),
        (["--folder", "x", "--kind", "three"], "invalid choice: 'three'"),
        (["--folder", "x", "--count", "1.5"], "invalid int value: '1.5'"),
    ],
)
def test_parse_names_what_it_cannot_take(capsys, words, message):
    with pytest.raises(SystemExit, match="2"):
        parse(Settings, "", words)
    assert message in capsys.readouterr().err


def test_help_explains_every_field(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(Settings, "What it does.", ["--help"])
    text = capsys.readouterr().out
    assert "What it does." in text
    for field in dataclasses.fields(Settings):
        assert field.metadata["help"] in text
    assert "how many (default: 3)" in text
    assert "others (default" not in text


def test_run_reports_a_refusal_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run(lambda: image_folder(tmp_path / "nowhere", image_size=8, batch_size=1))
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and "nowhere" in text and text.count("\n") == 1


def test_run_reports_a_refusal_of_any_part_of_the_package(capsys):
    with pytest.raises(SystemExit, match="2"):
        run(lambda: baselines.get("magic"))
    assert "Received: name='magic'" in capsys.readouterr().err


def test_run_reports_a_file_that_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run((tmp_path / "gone.json").read_text)
    assert "gone.json" in capsys.readouterr().err


def test_run_keeps_the_traceback_of_other_errors():
    with pytest.raises(ValueError, match="invalid literal"):
        run(lambda: int(np.array("three")))
