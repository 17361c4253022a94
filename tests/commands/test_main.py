"""The commands of `python -m elastic_tf`, and the scripts that are the same."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import elastic_tf as et
from elastic_tf import __main__ as program
from elastic_tf.commands.commandline import command

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "profile": ROOT / "profiling" / "profile_device.py",
    "train": ROOT / "experiments" / "train.py",
    "compare": ROOT / "experiments" / "compare.py",
}


def python(*words, cwd=None):
    """A Python that says what it says by itself."""
    quiet = ("TF_CPP_MIN_LOG_LEVEL", "PYTHONWARNINGS")
    environment = {name: text for name, text in os.environ.items() if name not in quiet}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def helped(capsys, start) -> str:
    """What a command says to --help, without line breaks."""
    with pytest.raises(SystemExit, match="0"):
        start()
    return " ".join(capsys.readouterr().out.split())


def test_help_names_every_command(capsys):
    said = helped(capsys, lambda: program.main(["--help"]))
    assert said.startswith("usage: python -m elastic_tf")
    for name, text in program.COMMANDS.items():
        assert f"{name} {text}" in said


@pytest.mark.parametrize("name", program.COMMANDS)
def test_help_of_a_command_names_it_as_it_is_called(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["restored afterwards"])
    said = helped(capsys, lambda: program.main([name, "--help"]))
    assert said.startswith(f"usage: python -m elastic_tf {name} [-h]")
    assert "--out" in said


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", program.COMMANDS)
def test_help_of_a_command_fits_the_terminal_and_keeps_its_example(
    name, columns, capsys, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["restored afterwards"])
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit, match="0"):
        program.main([name, "--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= columns
    assert f"\n    python -m elastic_tf {name} -" in said


def test_help_of_profile_lists_the_options_that_stand_alone(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["restored afterwards"])
    said = helped(capsys, lambda: program.main(["profile", "--help"]))
    assert "--list [FOLDER] list the tables" in said
    assert "--compare A.json B.json print two profiles" in said


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_take_what_the_commands_take(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["restored afterwards"])
    by_name = helped(capsys, lambda: program.main([name, "--help"]))
    monkeypatch.setattr("sys.argv", [str(SCRIPTS[name]), "--help"])
    by_script = helped(capsys, lambda: runpy.run_path(str(SCRIPTS[name]), run_name="__main__"))
    assert by_script == by_name.replace(f"python -m elastic_tf {name}", SCRIPTS[name].name, 1)


@pytest.mark.parametrize(
    ("words", "received"),
    [(["tran"], "invalid choice: 'tran' (choose from"), ([], "COMMAND --help explains")],
)
def test_what_is_no_command_is_refused(words, received, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(words)
    assert received in capsys.readouterr().err


def test_a_package_that_a_command_needs_is_named_where_it_is_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr("sys.argv", ["restored afterwards"])
    monkeypatch.setattr(program.importlib, "import_module", missing)
    with pytest.raises(SystemExit, match="elastic_tf train needs the package 'numpy'"):
        program.main(["train", "--help"])


def test_child_processes_run_the_package_and_no_file_of_it():
    assert command("train", ["--out", "x"]) == ["-m", "elastic_tf", "train", "--out", "x"]


def test_the_program_and_doctor_start_without_tensorflow():
    code = (
        "import sys; sys.argv = ['-m']\n"
        "import elastic_tf.__main__, elastic_tf.commands.doctor\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert python("-c", code).returncode == 0


def loaded_by(words, cwd) -> tuple[int, str, set[str]]:
    """Exit code and words of a command, and what it loaded of that which takes seconds."""
    code = (
        "import sys; words, sys.argv = sys.argv[1:], ['-m']\n"
        "from elastic_tf.__main__ import main\n"
        "try:\n"
        "    main(words)\n"
        "finally:\n"
        "    print('loaded', *{'matplotlib', 'scipy', 'tensorflow'} & set(sys.modules))\n"
    )
    done = python("-c", code, *words.split(), cwd=cwd)
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded", done.stderr
    return done.returncode, done.stdout + done.stderr, set(loaded[1:])


@pytest.mark.parametrize("name", program.COMMANDS)
def test_help_of_a_command_loads_nothing_that_takes_seconds(name, tmp_path):
    code, said, loaded = loaded_by(f"{name} --help", tmp_path)
    assert (code, loaded) == (0, set())
    assert "--out" in said


@pytest.mark.parametrize(
    ("words", "received"),
    [
        ("train --rho x", "invalid float value: 'x'"),
        ("train --method foo", "invalid choice: 'foo'"),
        ("train --data digits --out x --rho 2", "Received: rho=2.0"),
        ("train --data digits --out x --method full --rho 0.5", "Received: 0.5 for full"),
        ("train --data digits --out x --warm-up 3", "Received: warm_up=3.0"),
        ("train --data digits --out x --augment cutout", "Received: 'cutout'"),
        ("train --data digits --out x --targets 70", "Received: '70'"),
        ("train --data digits --out x --profile gone.json", "no timing profile 'gone.json'"),
        ("train --data gone --out x", "Received: 'gone', which is not there"),
        ("train --data digits:upside --out x", "Received: 'digits:upside'"),
        ("compare --data digits --out x --methods foo@0.5", "Received: methods='foo'"),
        ("compare --data digits --out x --reference last_k@0.5", "Received: 'last_k@0.5'"),
        ("compare --data digits --out x --rates fast", "Received: 'fast'"),
        ("compare --data digits --out x --warm-up 3", "Received: warm_up=3.0"),
        ("profile --model vgg --classes 3 --out x", "invalid choice: 'vgg'"),
        ("plot --out a.txt --profile gone.json", "Received: 'a.txt'"),
        ("plot --out a.png --profile gone.json", "no timing profile 'gone.json'"),
        ("plot --out a.png --runs gone", "Received: 'gone', which is not there"),
    ],
)
def test_what_is_refused_of_a_command_line_loads_nothing_that_takes_seconds(
    words, received, tmp_path
):
    code, said, loaded = loaded_by(words, tmp_path)
    assert (code, loaded) == (2, set())
    assert received in said
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_drawn_without_tensorflow(tmp_path):
    results = ROOT / "experiments" / "results" / "birds.json"
    code, _, loaded = loaded_by(f"plot --comparison {results} --out a.png", tmp_path)
    assert (code, loaded) == (0, {"matplotlib"})


def test_profile_refuses_a_file_that_it_cannot_write_before_it_loads_tensorflow(tmp_path):
    (tmp_path / "file").write_text("")
    words = "profile --model vgg16 --classes 3 --out file/p.json"
    code, said, loaded = loaded_by(words, tmp_path)
    assert (code, loaded) == (1, set())
    assert "Received: 'file/p.json'" in said


def test_import_loads_every_public_name():
    assert set(et.__all__) <= set(vars(et))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'elastic_tf' has no attribute 'magic'"):
        et.magic  # noqa: B018


def test_the_library_never_imports_from_the_commands():
    package = ROOT / "elastic_tf"
    for path in package.rglob("*.py"):
        if path.parent.name == "commands":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            assert not any(name.startswith("elastic_tf.commands") for name in names), path


@pytest.mark.slow
def test_doctor_says_nothing_that_it_was_not_asked(tmp_path):
    done = python("-m", "elastic_tf", "doctor", cwd=tmp_path)
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["start-up", "ok", "quiet"] in rows
    assert list(tmp_path.iterdir()) == []
