"""Which runtime settings train a model fastest on this device.

A setting needs a process of its own. Two processes are alive at a time, one under TensorFlow's
defaults and one under the setting tried; they take steps in turn, for only ratios of neighbours
hold on a machine whose speed drifts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from elastic_tf.timing.runtime import (
    RuntimeSettings,
    SettingsTrial,
    describe_device,
    usable_cores,
)

_SECONDS = 600  # to build the model, and for the steps of one turn
_TURNS = 5
_STEPS = 2  # in a turn
_GAIN = 0.97  # ratio below which a setting is better than the noise

Steps = Callable[[], float]  # the median seconds of a few steps


def search(options: Any) -> tuple[RuntimeSettings, tuple[SettingsTrial, ...]]:
    """The best settings, tried kind by kind, each with the best before it; and all trials.

    Raises:
        RuntimeError: no step can be run under the defaults.
    """
    best, best_ratio = RuntimeSettings(), 1.0
    trials: list[SettingsTrial] = []
    cores = usable_cores()
    threads = {(1, cores), (cores, 1), (2, cores), (1, max(cores // 2, 1))} - {(cores, cores)}
    kinds: list[list[dict[str, Any]]] = [
        # the other of what TensorFlow decided by the processor
        [{"onednn": not describe_device()["onednn"]}],
        [{"inter_op_threads": a, "intra_op_threads": b} for a, b in sorted(threads)],
    ]
    with _process(options, best) as defaults:
        defaults()
        for changes in kinds:
            for settings in [replace(best, **change) for change in changes]:
                trial = _tried(defaults, options, settings)
                trials.append(trial)
                said = "failed: " + trial.error
                if trial.ratio is not None:
                    said = f"{trial.ratio:5.2f} x the step time of the defaults"
                    if trial.ratio < _GAIN * best_ratio:
                        best, best_ratio = settings, trial.ratio
                print(f"  {str(settings):<45} {said}", flush=True)
    return best, tuple(trials)


def _tried(defaults: Steps, options: Any, settings: RuntimeSettings) -> SettingsTrial:
    """Steps under `settings` and under the defaults in turn."""
    try:
        with _process(options, settings) as steps:
            steps()
            pairs = [(steps(), defaults()) for _ in range(_TURNS)]
    except RuntimeError as error:
        return SettingsTrial(settings, None, None, str(error))
    ratio = statistics.median(one / other for one, other in pairs)
    return SettingsTrial(settings, 1e6 * statistics.median(one for one, _ in pairs), ratio)


@contextlib.contextmanager
def _process(options: Any, settings: RuntimeSettings) -> Iterator[Steps]:
    """A process that takes training steps under given settings when asked to."""
    context = multiprocessing.get_context("spawn")  # TensorFlow reads its settings when it starts
    here, there = context.Pipe()
    process = context.Process(target=serve_steps, args=(options, there), daemon=True)
    with mock.patch.dict(os.environ, settings.environment(), clear=True):
        process.start()
    there.close()  # the other end is the process's own: its end is noticed

    def steps() -> float:
        try:
            here.send(_STEPS)
            if not here.poll(_SECONDS):
                raise RuntimeError(f"took longer than {_SECONDS} seconds")
            answer = here.recv()
        except (EOFError, OSError) as error:
            process.join()
            raise RuntimeError(f"ended with exit code {process.exitcode}") from error
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return statistics.median(answer)

    try:
        yield steps
    finally:
        process.kill()
        process.join()
        here.close()


def serve_steps(options: Any, connection: Any) -> None:
    """Build the model of a profile, and take n full steps for every n that is received."""
    try:
        import numpy as np

        from elastic_tf import optimizers
        from elastic_tf.commands.training import harness
        from elastic_tf.inputs.batches import as_batch
        from elastic_tf.timing.stopwatch import seconds
        from elastic_tf.timing.trace import StepFunction

        model, batch = harness.model_and_batch(options)
        optimizers.build(model.optimizer, model.trainable_variables)
        run, data = StepFunction(model, np.ones(len(model.tensors), bool)), as_batch(*batch)
        run.warm_up(data)
        while True:
            connection.send([seconds(run, data) for _ in range(connection.recv())])
    except EOFError:  # the other end has all that it wanted
        pass
    except Exception as error:  # the other end tells why this setting cannot run
        connection.send(f"{type(error).__name__}: {error}".splitlines()[0])
