"""Which runtime settings train a model fastest on this device.

A setting needs a process of its own. Two processes are alive at a time, one under TensorFlow's
defaults and one under the setting tried; they take steps in turn, for only ratios of neighbours
hold on a machine whose speed drifts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from elastic_tf.timing.device import describe_device
from elastic_tf.timing.runtime import RuntimeSettings, SettingsTrial, usable_cores

_SERVER = ("-m", "elastic_tf.commands.profiling.step_server")
_START_SECONDS = 600  # to build the model and, with XLA, to compile a step
_STEP_SECONDS = 120  # for the steps of one turn
_TURNS = 5
_STEPS = 2  # in a turn
_HOPELESS = 1.2  # ratio after two turns that makes the others needless
_GAIN = 0.97  # ratio below which a setting is better than the noise

Report = Callable[[SettingsTrial, int, int], None]  # a trial, its number from 1, how many


def search(
    arguments: Sequence[str], report: Report = lambda trial, number, count: None
) -> tuple[RuntimeSettings, tuple[SettingsTrial, ...]]:
    """Try settings of one kind after the other, each with the best of those before it.

    Args:
        arguments: of the command `profile`; they name the model and the batch.
        report: called with each trial when it is done, its number from 1, and how many there are.

    Returns:
        The best settings, and all trials.

    Raises:
        RuntimeError: no step can be run under the defaults.
    """
    best, best_ratio = RuntimeSettings(), 1.0
    trials: list[SettingsTrial] = []
    kinds = (_onednn, _threads, _xla)
    count = sum(len(kind(best)) for kind in kinds)
    with StepProcess(arguments, best) as defaults:
        for kind in kinds:
            base = best
            for settings in kind(base):
                trial = _tried(defaults, arguments, settings)
                trials.append(trial)
                report(trial, len(trials), count)
                if trial.ratio is not None and trial.ratio < _GAIN * best_ratio:
                    best, best_ratio = settings, trial.ratio
    return best, tuple(trials)


def _onednn(base: RuntimeSettings) -> list[RuntimeSettings]:
    # the other of what TensorFlow decided by the processor
    return [replace(base, onednn=not describe_device()["onednn"])]


def _threads(base: RuntimeSettings) -> list[RuntimeSettings]:
    cores = usable_cores()
    pairs = sorted({(1, cores), (cores, 1), (2, cores), (1, max(cores // 2, 1))} - {(cores, cores)})
    return [replace(base, inter_op_threads=a, intra_op_threads=b) for a, b in pairs]


def _xla(base: RuntimeSettings) -> list[RuntimeSettings]:
    return [replace(base, xla=True)]


def _tried(
    defaults: StepProcess, arguments: Sequence[str], settings: RuntimeSettings
) -> SettingsTrial:
    """Steps under `settings` and under the defaults in turn."""
    try:
        with StepProcess(arguments, settings) as process:
            pairs: list[tuple[float, float]] = []
            while len(pairs) < _TURNS:
                pairs.append((process.steps(), defaults.steps()))
                ratio = statistics.median(one / other for one, other in pairs)
                if len(pairs) == 2 and ratio > _HOPELESS:
                    break
    except RuntimeError as error:
        return SettingsTrial(settings, None, None, str(error))
    return SettingsTrial(settings, 1e6 * statistics.median(one for one, _ in pairs), ratio)


class StepProcess:
    """A process that takes training steps under given settings when asked to.

    Raises:
        RuntimeError: it ended, or took too long; the message holds its last words.
    """

    def __init__(self, arguments: Sequence[str], settings: RuntimeSettings) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *_SERVER, *arguments, *["--xla"] * settings.xla],
            env=settings.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._words: list[str] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self._started = False

    def __enter__(self) -> StepProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def steps(self) -> float:
        """Median seconds of a few steps."""
        if not self._started:
            self._answer(_START_SECONDS)
            self._started = True
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(f"{_STEPS}\n")
                stdin.flush()
        except BrokenPipeError:
            pass  # it ended: the answer tells why
        return statistics.median(json.loads(self._answer(_STEP_SECONDS)))

    def _answer(self, seconds: float) -> str:
        """The next line of the process, within `seconds`."""
        watch = threading.Timer(seconds, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        finally:
            late = watch.finished.is_set()
            watch.cancel()
        if line:
            return line
        if late:
            raise RuntimeError(f"took longer than {seconds:.0f} seconds")
        self._reader.join(timeout=5)
        raise RuntimeError(self._words[-1] if self._words else "ended without a word")

    def _listen(self) -> None:
        """Keep the last words of the process; a full pipe would stop it."""
        for line in self._process.stderr or ():
            if line.strip():
                self._words = [*self._words[-4:], line.strip()]
