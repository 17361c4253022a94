"""How the commands read their words, and what they say of wrong ones."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_tf import __main__ as program
from elastic_tf import baselines, optimizers, zoo
from elastic_tf.commands import commandline, options, train
from elastic_tf.commands.commandline import option, parse, typed, words_of
from elastic_tf.commands.training import sources

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Settings:
    folder: Path = option(help="where")
    count: int = option(3, help="how many")
    share: float | None = option(None, help="how much")
    kind: str = option("one", help="which", choices=("one", "two"))
    loud: bool = option(False, help="aloud", alias="--noisy")
    more: tuple[int, ...] = option((), help="others")


def test_parse_gives_each_field_its_type():
    words = "--folder a/b --count 7 --share 0.5 --kind two --loud --more 1 2".split()
    found = parse(Settings, "", words)
    assert found == Settings(Path("a/b"), 7, 0.5, "two", True, (1, 2))
    assert words_of(vars(found)) == words


def test_parse_takes_the_defaults():
    assert parse(Settings, "", ["--folder", "x"]) == Settings(Path("x"), 3, None, "one", False, ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: --folder"),
        (["--folder", "x", "--kind", "three"], "invalid choice: 'three'"),
        (["--folder", "x", "--count", "1.5"], "invalid int value: '1.5'"),
        (["--folder", "x", "--cout=4"], "unrecognized arguments: --cout=4. Did you mean --count? "),
        (["--foldr", "x"], "unrecognized arguments: --foldr. Did you mean --folder? "),
        (
            ["--folder", "x", "--kind", "tow"],
            "'tow' (choose from 'one', 'two'). Did you mean two? ",
        ),
        (["--hell"], "unrecognized arguments: --hell. Did you mean --help? "),
        (["--lr", "1"], "unrecognized arguments: --lr. program --help"),
    ],
)
def test_parse_says_in_one_line_what_it_cannot_take(capsys, monkeypatch, words, message):
    monkeypatch.setattr("sys.argv", ["program"])
    with pytest.raises(SystemExit, match="2"):
        parse(Settings, "", words)
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_an_option_has_its_usual_name_as_well():
    assert parse(Settings, "", ["--folder", "x", "--noisy"]).loud


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--lr 0.5", "learning_rate", 0.5),
        ("--warmup-ratio 0.25", "warm_up", 0.25),
        ("--validation-split 0.3", "validation", 0.3),
    ],
)
def test_train_takes_the_names_that_others_use(words, field, value):
    found = parse(train.Settings, "", ["--data", "digits", "--out", "y", *words.split()])
    assert getattr(found, field) == value


def test_help_explains_every_field_and_keeps_the_example(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(Settings, "Does it.\n\nExample::\n\n    program --one \\\n        --two", ["--help"])
    said = capsys.readouterr().out
    assert "Does it.\n\nExample:\n\n    program --one \\\n        --two\n" in said
    assert "how many (default: 3)" in said and "others (default" not in said


def test_help_names_what_there_is():
    assert options.MODELS == zoo.NAMES
    assert options.METHODS == baselines.NAMES
    assert options.OPTIMIZERS == optimizers.NAMES
    assert options.DIGITS == tuple(sources.DOMAINS)
    within = [name for name in baselines.NAMES if baselines.get(name).needs_profile]
    assert within == list(options.WITHIN_RHO)


def test_a_command_is_typed_from_the_present_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert typed(["-m", "x", "a b"]) == ".venv/bin/python -m x 'a b'"
    monkeypatch.setattr("sys.executable", "/elsewhere/python")
    assert typed(["-m", "x"]) == "/elsewhere/python -m x"


def failing(error):
    raise error


def test_run_reports_a_refusal_of_this_package_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        commandline.run(lambda: baselines.get("magic"))
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "name='magic'" in said and said.count("\n") == 1


def test_the_nearest_name_of_a_registry_is_said():
    with pytest.raises(ValueError, match="name='mobilnet'. Did you mean 'mobilenet'?"):
        zoo.build("mobilnet", classes=2, input_size=32)
    with pytest.raises(ValueError, match=r"name=7\.$"):
        baselines.get(7)


def test_run_reports_a_file_that_is_missing_and_keeps_other_tracebacks(tmp_path, capsys):
    with pytest.raises(SystemExit):
        commandline.run((tmp_path / "gone.json").read_text)
    assert "gone.json" in capsys.readouterr().err
    with pytest.raises(ValueError, match="three"):
        commandline.run(lambda: failing(ValueError("three")))


def test_an_interrupt_is_one_line_and_the_exit_code_of_a_shell(capsys):
    with pytest.raises(SystemExit, match="130"):
        commandline.run(lambda: failing(KeyboardInterrupt()))
    assert capsys.readouterr().err.startswith("\nInterrupted.")


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_names_every_command(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        program.main(words)
    said = capsys.readouterr().out
    for name, text in program.COMMANDS.items():
        assert f"{name:<8} {text}" in said


@pytest.mark.parametrize(
    ("started", "named"),
    [("/usr/bin/elastic-tf", "elastic-tf"), ("elastic_tf/__main__.py", "python -m elastic_tf")],
)
def test_help_names_the_program_as_it_was_started(started, named, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [started, "--help"])
    with pytest.raises(SystemExit, match="0"):
        program.main()
    assert capsys.readouterr().out.startswith(f"usage: {named} ")


@pytest.mark.parametrize(
    ("words", "received"),
    [
        (["tran"], "'tran' (choose from"),
        (["tran"], "Did you mean train?"),
    ],
)
def test_what_is_no_command_is_refused(words, received, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(words)
    assert received in capsys.readouterr().err


def run_alone(code, **options):
    """Code in a process that has loaded nothing yet."""
    options |= {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True}
    done = subprocess.run([sys.executable, "-c", code], text=True, **options)
    assert done.returncode == 0, done.stderr
    return done


def test_help_of_every_command_comes_without_tensorflow():
    code = (
        "import sys; sys.argv = ['-m']\n"
        "from elastic_tf.__main__ import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    try:\n"
        "        main([name, '--help'])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "assert not {'matplotlib', 'scipy', 'tensorflow'} & set(sys.modules)\n"
    )
    done = run_alone(code)
    for name in program.COMMANDS:
        assert f"\n    python -m elastic_tf {name} -" in done.stdout


REFUSED = {
    "--data cats": "FILE.npz .*Received: 'cats', which is no file",
    "--data digits:upside_down": "digits:shifted.*'digits:upside_down'",
    "--data .": "must hold train/CLASS/",
    "--data digits --rho 2": "rho=2.0. Use 0.5",
    "--data digits --method full --rho 0.5": "rho=0.5 for full",
    "--data digits --epochs 0": "at least 1. Received: 0",
    "--data digits --lr -1": "learning_rate=-1.0",
    "--data digits --seed -1": "at least 0. Received: -1",
    "--data digits --batch-size 0": "Received: 0",
    "--data digits --validation 1": "validation=1.0",
    "--data digits --warm-up 1": "warm_up=1.0",
    "--data digits --warm-up 0.1 --schedule constant": "warm_up=0.1, schedule='constant'",
    "--data digits --alpha 0": "alpha=0.0",
    "--data digits --method magic": "traditional_tl.*method='magic'",
    "--data digits --model mobilnet": "Did you mean 'mobilenet'",
    "--data digits --optimizer adma": "Did you mean 'adam'",
    "--data digits --weights gone.h5": "'gone.h5', which is no file",
    "--data digits --out file/run": "file/run",
    "--data digits --profile gone.json": "gone.json",
}


def test_what_is_wrong_with_the_words_is_said_before_tensorflow_is_loaded(tmp_path):
    code = (
        "import sys; sys.argv = ['-m']\n"
        "from elastic_tf.__main__ import main\n"
        f"for words in {list(REFUSED)}:\n"
        "    try:\n"
        "        main(['train', '--out', 'run', *words.split()])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 2\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    (tmp_path / "file").write_text("")
    done = run_alone(code, cwd=tmp_path)
    for line, received in itertools.zip_longest(done.stderr.splitlines(), REFUSED.values()):
        assert line.startswith("error: ") and re.search(received, line), (line, received)


def test_the_installed_program_loads_tensorflow_no_earlier():
    code = "import sys; sys.argv = ['/bin/elastic-tf']; import elastic_tf.__main__; "
    code += "assert 'tensorflow' not in sys.modules"
    run_alone(code)


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("profile", "profiling/profile_device.py"),
        ("train", "experiments/train.py"),
        ("compare", "experiments/compare.py"),
    ],
)
def test_scripts_take_what_the_commands_take(name, script, capsys, monkeypatch):
    helps = []
    for start in (
        lambda: program.main([name, "--help"]),
        lambda: runpy.run_path(str(ROOT / script), run_name="__main__"),
    ):
        monkeypatch.setattr("sys.argv", [script, "--help"])
        with pytest.raises(SystemExit, match="0"):
            start()
        helps.append(capsys.readouterr().out.partition("\n\n")[2])
    assert helps[0] == helps[1]
