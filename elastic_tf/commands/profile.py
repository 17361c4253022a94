r"""Measure, once per device, what training each tensor of a model costs there.

Example::

    python -m elastic_tf profile --model mobilenet --alpha 0.75 \
        --input-size 160 --batch-size 4 --classes 40 --out mobilenet.json

First it looks for the runtime settings (oneDNN, threads, XLA) that train the model fastest; the
profile is measured under them and names them, and training uses them. --as-is leaves that out.
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf import commandline, plots, timing_file
from elastic_tf.commandline import Alone, option, parse
from elastic_tf.commands.profile_text import comparison, listing, report, trial_line
from elastic_tf.commands.settings_search import Report, search
from elastic_tf.runtime import SettingsTrial

TABLES = Path("profiling") / "tables"  # in a checkout; a wheel brings none


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure, and where to put it."""

    model: str = option(help="model of the zoo", choices=et.zoo.NAMES)
    out: Path = option(help="JSON file for the profile")
    classes: int = option(help="classes of the head")
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step")
    optimizer: str = option(
        "adam", help="its update is part of the step", choices=et.optimizers.NAMES
    )
    bn_training: bool = option(False, help="let batch normalisation use the batch's statistics")
    repeats: int = option(20, help="timed steps behind each median")
    time_limit: Optional[float] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="seconds after which no more steps are timed"
    )
    as_is: bool = option(False, help="do not search settings, measure under the present ones")
    xla: bool = option(False, help="compile the step with XLA (with --as-is)")
    dearest: int = option(15, help="tensors to print")
    plot: Optional[Path] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="picture of t_dw and t_dy of each tensor"
    )


LIST = Alone(
    "--list",
    ("FOLDER",),
    "list the tables that come with the project's checkout, or those in FOLDER/DEVICE/*.json",
    is_optional=True,
)
COMPARE = Alone("--compare", ("A.json", "B.json"), "print two profiles of one model side by side")
ALONE = (LIST, COMPARE)


def main(arguments: Sequence[str] | None = None, tables: Path = TABLES) -> None:
    """Profile; or list or compare, and end the program.

    Args:
        arguments: of the command line; None: those of the program.
        tables: the folder that --list shows where it is given none.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    settings = parse(
        Settings,
        __doc__ or "",
        words,
        {LIST: lambda folder: print(listing(Path(folder or tables))), COMPARE: compare},
    )
    check_writable(settings.out)
    with timing_file.claimed(settings.out):
        profile = measure(settings) if settings.as_is else searched(settings, words)
    print(report(profile, settings.dearest))
    print(f"Written to {settings.out}")
    if settings.plot is not None:
        plots.save(plots.timing_bars(profile), settings.plot)


def compare(paths: Sequence[str]) -> None:
    """Print two profiles side by side."""
    try:
        one, two = (et.TimingProfile.load(path) for path in paths)
        print(comparison(one, two))
    except (ValueError, OSError) as error:
        raise SystemExit(f"These profiles cannot be compared: {error}") from error


def check_writable(path: Path) -> None:
    """Refuse, before minutes of measuring, a file that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SystemExit(f"--out cannot be written. Received: '{path}': {error}.") from error


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
