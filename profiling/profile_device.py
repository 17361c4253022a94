"""Measure, once per device, what training each tensor of a model costs there.

Example: python profiling/profile_device.py --model mobilenet --alpha 0.75 --input-size 160
--batch-size 4 --classes 40 --out mobilenet.json
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf.commandline import option, parse
from elastic_tf.runs import Column, format_table


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
        "sgdw", help="its update is part of the step", choices=et.optimizers.NAMES
    )
    bn_training: bool = option(False, help="let batch normalisation use the batch's statistics")
    repeats: int = option(20, help="timed steps behind each median")
    time_limit: Optional[float] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="seconds after which no more steps are timed"
    )
    dearest: int = option(15, help="tensors to print")


def main(arguments: Sequence[str] | None = None) -> et.TimingProfile:
    """Build the model with random weights, measure, save, print."""
    settings = parse(Settings, __doc__ or "", arguments)
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
    )
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (settings.batch_size, *model.input_shape[1:])).astype(np.float32)
    labels = rng.integers(0, settings.classes, settings.batch_size)

    started = time.perf_counter()
    profile = et.profile_model(
        model, images, labels, repeats=settings.repeats, time_limit=settings.time_limit
    )
    seconds = time.perf_counter() - started
    profile.save(settings.out)
    print(report(profile, settings.dearest))
    print(f"Measured in {seconds:.0f} s, written to {settings.out}")
    return profile


def report(profile: et.TimingProfile, dearest: int) -> str:
    """The tensors that cost most, and how sure the profile is."""
    cost = profile.t_dw + profile.t_dy
    rows = [
        {
            "tensor": profile.tensors[k].name,
            "shape": "x".join(map(str, profile.tensors[k].shape)),
            "t_dw": profile.t_dw[k] / 1e3,
            "t_dy": profile.t_dy[k] / 1e3,
            "share": cost[k] / profile.t_full,
        }
        for k in np.argsort(cost)[::-1][:dearest]
    ]
    columns = (
        "tensor",
        "shape",
        Column("t_dw", "t_dw ms", ".3f"),
        Column("t_dy", "t_dy ms", ".3f"),
        Column("share", "of full step", ".1%"),
    )
    lines = [
        format_table(rows, columns),
        "",
        f"Device: {profile.device['name']}, {profile.device['cores']} cores",
        f"Full step {profile.t_full / 1e3:.2f} ms (spread {profile.spread:.0%}), forward pass "
        f"{profile.t_forward / 1e3:.2f} ms ({profile.t_forward / profile.t_full:.0%})",
        f"{profile.count} tensors, {len(profile.sets)} dependency sets; "
        f"{profile.share_attributed:.1%} of the backward time attributed",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
