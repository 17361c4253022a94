from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_tf.commands.profiling import settings_search
from elastic_tf.commands.profiling.settings_search import StepProcess, search
from elastic_tf.timing.runtime import RuntimeSettings

ARGUMENTS = (
    "--model mobilenet --alpha 0.25 --input-size 32 --batch-size 2 --classes 3 --optimizer sgd "
    "--out unused.json".split()
)


class Pretended:
    """A process whose steps take as long as `speed` says."""

    speed = staticmethod(lambda settings: 1.0)

    def __init__(self, arguments, settings):
        self.settings = settings

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def steps(self) -> float:
        return self.speed(self.settings)


def searched(monkeypatch, speed):
    monkeypatch.setattr(settings_search, "StepProcess", Pretended)
    monkeypatch.setattr(Pretended, "speed", staticmethod(speed))
    return search([])


def test_search_keeps_the_best_of_each_kind(monkeypatch):
    def speed(settings):
        return 1.0 - 0.3 * (settings.onednn is True) - 0.2 * (settings.inter_op_threads == 1)

    monkeypatch.setattr(settings_search, "describe_device", lambda: {"onednn": False})
    monkeypatch.setattr(settings_search, "usable_cores", lambda: 2)
    best, trials = searched(monkeypatch, speed)
    assert (best.onednn, best.inter_op_threads, best.xla) == (True, 1, False)
    assert [trial.settings for trial in trials][0] == RuntimeSettings(onednn=True)
    assert trials[-1].settings.xla
    assert min(trial.ratio for trial in trials) == pytest.approx(0.5)


def test_search_keeps_the_defaults_where_others_gain_less_than_the_noise(monkeypatch):
    best, trials = searched(
        monkeypatch, lambda settings: 0.99 if settings.intra_op_threads else 1.0
    )
    assert best == RuntimeSettings()
    assert all(trial.step for trial in trials)


def test_search_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(settings_search, "StepProcess", Pretended)
    told = []
    _, trials = search([], lambda trial, number, count: told.append((trial, number, count)))
    assert told == [(trial, k + 1, len(trials)) for k, trial in enumerate(trials)]


def test_search_goes_on_where_a_setting_fails(monkeypatch):
    def speed(settings):
        if settings.xla:
            raise RuntimeError("XLA refuses")
        return 1.0

    best, trials = searched(monkeypatch, speed)
    assert not best.xla
    assert [trial.error for trial in trials if trial.ratio is None] == ["XLA refuses"]


@pytest.mark.slow
def test_a_step_process_takes_steps_under_its_settings():
    with StepProcess(ARGUMENTS, RuntimeSettings(inter_op_threads=1, intra_op_threads=1)) as process:
        assert process.steps() > 0
        assert process.steps() > 0


@pytest.mark.slow
def test_a_step_process_that_fails_tells_why():
    with StepProcess(
        [*ARGUMENTS[:-2], "--classes", "1", "--out", "x"], RuntimeSettings()
    ) as process:
        with pytest.raises(RuntimeError, match="`classes` .* Received: 1"):
            process.steps()


def test_a_step_process_that_says_nothing_is_ended(monkeypatch, tmp_path):
    silent = tmp_path / "silent.py"
    silent.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(settings_search, "_SERVER", (str(silent),))
    monkeypatch.setattr(settings_search, "_START_SECONDS", 0.2)
    with StepProcess([], RuntimeSettings()) as process:
        with pytest.raises(RuntimeError, match="took longer than 0 seconds"):
            process.steps()


def test_what_libraries_print_does_not_get_among_the_answers():
    program = (
        "import os\n"
        "from elastic_tf.commands import step_server\n"
        "answers = step_server.output_of_its_own()\n"
        "print('Using a backend', flush=True)\n"
        "os.write(1, b'from a library in C')\n"
        "print('answer', file=answers, flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(settings_search.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "answer\n"
    assert "Using a backend" in ended.stderr and "from a library" in ended.stderr
