"""Measure, once per device, what training each tensor of a model costs there.

Example: python profiling/profile_device.py --model mobilenet --alpha 0.75 --input-size 160
--batch-size 4 --classes 40 --out mobilenet.json

With --list alone it lists the tables that come with the project, with --compare A.json B.json
alone it prints two profiles of one model side by side.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.commandline import option, parse
from elastic_tf.runs import Column, format_table

TABLES = Path(__file__).resolve().parent / "tables"


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
    plot: Optional[Path] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="picture of t_dw and t_dy of each tensor"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """List, compare, or profile."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--list"]:
        print(listing(TABLES))
    elif words[:1] == ["--compare"] and len(words) == 3:
        print(comparison(*(et.TimingProfile.load(path) for path in words[1:])))
    else:
        measure(parse(Settings, __doc__ or "", words))


def listing(folder: Path) -> str:
    """The profiles below a folder, a line each."""
    rows = []
    for path in sorted(folder.glob("*/*.json")):
        profile = et.TimingProfile.load(path)
        rows.append(
            {
                "table": str(path.relative_to(folder)),
                "device": profile.device.get("name", "-"),
                "tensors": profile.count,
                "batch": profile.batch_size,
                "full": profile.t_full / 1e3,
                "forward": profile.t_forward / profile.t_full,
            }
        )
    columns = (
        "table",
        "device",
        Column("tensors", "N"),
        "batch",
        Column("full", "full step ms", ".1f"),
        Column("forward", "forward", ".0%"),
    )
    return format_table(rows, columns) if rows else f"No tables in {folder}"


def comparison(one: et.TimingProfile, two: et.TimingProfile, dearest: int = 15) -> str:
    """Two profiles of one model side by side, the tensors with the largest difference in share.

    Raises:
        ValueError: the profiles are of different models.
    """
    if one.tensors != two.tensors:
        raise ValueError(
            "Profiles of one model can be compared. Received: profiles of "
            f"{one.count} and {two.count} tensors that are not the same."
        )
    pair = (one, two)
    ms = [[p.t_forward / 1e3, p.t_dw.sum() / 1e3, p.t_dy.sum() / 1e3, p.t_full / 1e3] for p in pair]
    lines = [
        {"part": part, "one": ms[0][k], "two": ms[1][k], "ratio": ms[1][k] / max(ms[0][k], 1e-9)}
        for k, part in enumerate(("forward", "t_dw", "t_dy", "full step"))
    ]
    shares = [(p.t_dw + p.t_dy) / p.t_full for p in pair]
    moved = np.argsort(-np.abs(shares[1] - shares[0]), kind="stable")[:dearest]
    tensors = [
        {
            "part": one.tensors[k].name if one.tensors else str(k),
            "one": shares[0][k],
            "two": shares[1][k],
            "ratio": shares[1][k] / max(shares[0][k], 1e-9),
        }
        for k in moved
    ]
    names = [f"{p.device.get('name', '?')} ({p.created[:10]})" for p in pair]
    times = format_table(lines, _side_by_side("ms per step", ".2f"))
    parts = format_table(tensors, _side_by_side("share of the full step", ".2%"))
    return f"A: {names[0]}\nB: {names[1]}\n\n{times}\n\n{parts}"


def _side_by_side(title: str, number_format: str) -> tuple[Column, ...]:
    """Columns that set A beside B."""
    return (
        Column("part", title),
        Column("one", "A", number_format),
        Column("two", "B", number_format),
        Column("ratio", "B / A", ".2f"),
    )


def measure(settings: Settings) -> et.TimingProfile:
    """Build the model with random weights, measure, save, print."""
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
    if settings.plot is not None:
        plots.save(plots.timing_bars(profile), settings.plot)
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
