"""How the commands read their words, and what they say of wrong ones."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from elastic_tf import __main__ as program
from elastic_tf.app import zoo
from elastic_tf.app.commands import commandline, harness, settings, train
from elastic_tf.app.commands.commandline import option, parse, words_of
from elastic_tf.app.pipelines import AUGMENTATIONS
from elastic_tf.methods import baselines
from elastic_tf.train import optimizers

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Settings:
    folder: Path = option(help="where")
    count: int = option(3, help="how many")
    share: float | None = option(None, help="how much")
    kind: str = option("one", help="which", choices=("one", "two"))
    loud: bool = option(False, help="aloud")
    more: tuple[int, ...] = option((), help="others")


def test_words_become_settings_and_settings_words():
    words = "--folder a/b --count 7 --share 0.5 --kind two --loud --more 1 2".split()
    found = parse(Settings, "", words)
    assert found == Settings(Path("a/b"), 7, 0.5, "two", True, (1, 2))
    assert words_of(vars(found)) == words
    assert parse(Settings, "", ["--folder", "x"]) == Settings(Path("x"), 3, None, "one", False, ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: --folder"),
        (["--folder", "x", "--count", "1.5"], "invalid int value: '1.5'"),
        (["--foldr=x"], "unrecognized arguments: --foldr=x. Did you mean --folder? "),
        (["--folder", "x", "--kind", "tow"], "). Did you mean two? "),
        (["--lr", "1"], "unrecognized arguments: --lr. program --help"),
    ],
)
def test_what_cannot_be_taken_is_one_line(capsys, monkeypatch, words, message):
    monkeypatch.setattr("sys.argv", ["program"])
    with pytest.raises(SystemExit, match="2"):
        parse(Settings, "", words)
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_help_explains_every_field_and_keeps_the_example(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(Settings, "Does it.\n\nExample::\n\n    program --one \\\n        --two", ["--help"])
    said = capsys.readouterr().out
    assert "Does it.\n\nExample:\n\n    program --one \\\n        --two\n" in said
    assert "how many (default: 3)" in said and "others (default" not in said


def test_help_names_what_there_is():
    assert settings.MODELS == zoo.NAMES
    assert settings.METHODS == baselines.NAMES
    assert settings.OPTIMIZERS == optimizers.NAMES
    assert settings.DIGITS == tuple(harness.DOMAINS)
    assert set(settings.AUGMENTATIONS) == set(AUGMENTATIONS)
    within = [name for name in baselines.NAMES if baselines.get(name).needs_profile]
    assert within == list(settings.WITHIN_RHO)


def test_refusals_and_missing_files_are_one_line_and_other_errors_keep_their_traceback(
    tmp_path, capsys
):
    for call, word in (
        (lambda: baselines.get("magic"), "name='magic'"),
        ((tmp_path / "gone.json").read_text, "gone.json"),
    ):
        with pytest.raises(SystemExit, match="2"):
            commandline.run(call)
        said = capsys.readouterr().err
        assert said.startswith("error: ") and word in said and said.count("\n") == 1
    with pytest.raises(ValueError, match="three"):
        commandline.run(Mock(side_effect=ValueError("three")))


def test_refusals_have_the_names_of_options(capsys):
    for words in ("--rho 0 --out o --data digits", "--input-size 0 --out o --data digits"):
        with pytest.raises(SystemExit, match="2"):
            commandline.run(lambda words=words: train.train(words.split()))
        assert f"error: {words.split()[0]} must" in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_the_exit_code_of_a_shell(capsys):
    with pytest.raises(SystemExit, match="130"):
        commandline.run(Mock(side_effect=KeyboardInterrupt))
    assert capsys.readouterr().err.startswith("\nInterrupted.")


@pytest.mark.parametrize(
    ("started", "named"),
    [("/usr/bin/elastic-tf", "elastic-tf"), ("elastic_tf/__main__.py", "python -m elastic_tf")],
)
def test_help_names_every_command_and_the_program_as_it_was_started(
    started, named, capsys, monkeypatch
):
    monkeypatch.setattr("sys.argv", [started])
    with pytest.raises(SystemExit, match="0"):
        program.main()
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {named} ")
    assert all(f"{name:<8} {text}" in said for name, text in program.COMMANDS.items())


def test_keras_is_spared_what_no_command_uses(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [program.Spared, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with pytest.raises(ModuleNotFoundError, match="No module named 'pandas' for Keras"):
        exec("import pandas", {"__name__": "keras.src.trainers"})
    assert importlib.util.find_spec("pandas") is not None  # for others it is there


def test_what_is_no_command_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["tran"])
    assert re.search(r"'tran' \(choose from.*Did you mean train\?", capsys.readouterr().err)


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
        assert f"\n    python -m elastic_tf {name}" in done.stdout


REFUSED = {
    "--data cats": "FILE.npz .*Received: 'cats', which is not there",
    "--data digits:upside_down": "digits:shifted.*'digits:upside_down'",
    "--data .": "must hold train/CLASS/",
    "--data digits --rho 2": "rho=2.0. Use 0.5",
    "--data digits --method full --rho 0.5": "rho=0.5 for full",
    "--data digits --method full --memory 1MiB": "memory='1MiB' for full",
    "--data digits --seconds 0": "seconds=0",
    "--data digits --memory lots": "memory='lots'",
    "--data digits --epochs 0": "at least 1. Received: 0",
    "--data digits --seed -1": "at least 0. Received: -1",
    "--data digits --validation 1": "validation=1.0",
    "--data digits --alpha 0": "alpha=0.0",
    "--data digits --method magic": "traditional_tl.*method='magic'",
    "--data digits --model mobilnet": "mobilnet.*Did you mean .mobilenet",
    "--data digits --weights gone.h5": "'gone.h5', which is not there",
    "--data digits --out file/run": "file/run",
    "--data digits --profile gone.json": "gone.json",
}


def test_what_is_wrong_with_the_words_is_said_before_tensorflow_is_loaded(tmp_path):
    code = (
        "import sys; sys.argv = ['/bin/elastic-tf']\n"
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


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("profile", "profiling/profile_device.py"),
        ("train", "experiments/train.py"),
        ("compare", "experiments/compare.py"),
    ],
)
def test_scripts_do_what_the_commands_do(name, script, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [script, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert f"\n    python -m elastic_tf {name} " in capsys.readouterr().out
