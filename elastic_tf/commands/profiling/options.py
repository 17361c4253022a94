"""The settings of one profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional

from elastic_tf.commands import names
from elastic_tf.commands.commandline import option


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure, and where to put it."""

    model: str = option(help="model of the zoo", choices=names.MODELS)
    out: Path = option(help="JSON file for the profile")
    classes: int = option(help="classes of the head")
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step")
    optimizer: str = option("adam", help="its update is part of the step", choices=names.OPTIMIZERS)
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
