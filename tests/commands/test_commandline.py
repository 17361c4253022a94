from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Optional

import numpy as np
import pytest

from elastic_tf import baselines
from elastic_tf.commands.commandline import Alone, loading, option, parse, run, telling, typed
from elastic_tf.data import image_folder


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


def test_help_keeps_the_lines_of_examples_and_wraps_the_rest(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    example = "    program --one \\\n        --two"
    with pytest.raises(SystemExit, match="0"):
        parse(Settings, f"Does it.\n\nExample::\n\n{example}\n\n{'word ' * 30}", ["--help"])
    text = capsys.readouterr().out
    assert f"\n\nDoes it.\n\nExample:\n\n{example}\n\nword word" in text
    assert max(map(len, text.splitlines())) <= 80


LIST = Alone("--list", ("FOLDER",), "names what is there", is_optional=True)
COMPARE = Alone("--compare", ("A", "B"), "sets two side by side")


@pytest.mark.parametrize(
    ("words", "values"),
    [(["--list"], None), (["--list", "x"], "x"), (["--compare", "x", "y"], ["x", "y"])],
)
def test_an_option_that_stands_alone_is_called_and_ends_the_program(words, values):
    called = []
    with pytest.raises(SystemExit, match="0"):
        parse(Settings, "", words, {LIST: called.append, COMPARE: called.append})
    assert called == [values]


def test_options_that_stand_alone_are_explained_and_count_their_values(capsys):
    alone = {LIST: print, COMPARE: print}
    with pytest.raises(SystemExit, match="0"):
        parse(Settings, "", ["--help"], alone)
    text = " ".join(capsys.readouterr().out.split())
    assert "--list [FOLDER] names what is there" in text
    assert "--compare A B sets two side by side" in text
    with pytest.raises(SystemExit, match="2"):
        parse(Settings, "", ["--compare", "x"], alone)
    assert "--compare: expected 2 arguments" in capsys.readouterr().err


def test_a_command_is_typed_from_the_present_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert typed(["-m", "x", "a b"]) == ".venv/bin/python -m x 'a b'"
    monkeypatch.setattr("sys.executable", "/elsewhere/python")
    assert typed(["-m", "x"]) == "/elsewhere/python -m x"


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


def test_what_takes_seconds_is_told_on_a_terminal_and_wiped_away(monkeypatch, capsys):
    with telling("Loading ..."):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with telling("Loading ..."):
        assert capsys.readouterr().err == "Loading ..."
    assert capsys.readouterr().err == "\r" + " " * len("Loading ...") + "\r"


def test_what_is_loaded_is_told_and_a_package_that_is_missing_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(SystemExit, match="error: program needs the package 'absent_package'"):
        with loading("Magic"):
            import absent_package  # noqa: F401
    assert capsys.readouterr().err.startswith("Loading Magic ...")


def test_a_module_of_this_package_that_is_missing_is_an_error():
    with pytest.raises(ModuleNotFoundError, match="elastic_tf.magic"), loading("Magic"):
        import elastic_tf.magic  # noqa: F401


def test_an_interrupt_is_one_line_and_the_exit_code_of_a_shell(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="130"):
        run(interrupted)
    said = capsys.readouterr().err
    assert said.startswith("\nInterrupted.") and "go on after the last finished epoch" in said
