"""Measures a model, under the present runtime settings or the fastest: what `profile` does."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.commands import commandline
from elastic_tf.commands.profiling.options import Settings
from elastic_tf.commands.profiling.settings_search import Report, search
from elastic_tf.commands.profiling.text import trial_line
from elastic_tf.timing.runtime import SettingsTrial


def searched(settings: Settings, words: Sequence[str]) -> et.TimingProfile:
    """Search the settings, then measure under the best in a process of its own."""
    print("Trying runtime settings, each in turn with the defaults in a process of its own.")
    print("This takes minutes; --as-is leaves it out.", flush=True)
    best, trials = search(words, _progress())
    print(f"Best: {best}. Measuring under it.", flush=True)
    with tempfile.TemporaryDirectory() as folder:  # `out` is claimed by this process
        path = Path(folder) / settings.out.name
        words = [*words, "--as-is", *["--xla"] * best.xla, "--out", str(path)]
        subprocess.run(
            [sys.executable, *commandline.command("profile", words)],
            env=best.environment(),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        profile = dataclasses.replace(et.TimingProfile.load(path), trials=trials)
    profile.save(settings.out)
    return profile


def _progress() -> Report:
    """Prints each trial when it is done, and how long the others will take."""
    started = time.perf_counter()

    def tell(trial: SettingsTrial, number: int, count: int) -> None:
        left = (time.perf_counter() - started) / number * (count - number)
        to_come = f"; about {math.ceil(left / 60)} min to go" if left else ""
        print(f"{number} of {count}{trial_line(trial)}{to_come}", flush=True)

    return tell


def measure(settings: Settings) -> et.TimingProfile:
    """Measure and save, under the settings of this process."""
    started = time.perf_counter()
    print("Building the model and measuring its steps ...", flush=True)
    model, batch = build(settings)
    profile = et.profile_model(
        model, *batch, repeats=settings.repeats, time_limit=settings.time_limit
    )
    profile.save(settings.out)
    print(f"Measured in {time.perf_counter() - started:.0f} s")
    return profile


def build(settings: Settings) -> tuple[et.ElasticModel, tuple[Any, Any]]:
    """The model with random weights, and a batch of noise."""
    model = et.ElasticModel.from_model(
        et.zoo.build(
            settings.model,
            classes=settings.classes,
            input_size=settings.input_size,
            alpha=settings.alpha,
            bn_training=settings.bn_training,
        )
    )
    model.compile(
        optimizer=et.optimizers.by_name(settings.optimizer, 1e-4),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=settings.xla,
    )
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (settings.batch_size, *model.input_shape[1:])).astype(np.float32)
    return model, (images, rng.integers(0, settings.classes, settings.batch_size))
