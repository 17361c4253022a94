"""Whether runs can be written, and whether data sets and a profile of this device are there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from elastic_tf.commands.checking.finding import BROKEN, NOTE, OK, Finding
from elastic_tf.commands.commandline import command, typed
from elastic_tf.timing.profile import TimingProfile

_GIB = 2**30
# A run keeps weights and, until it ends, a backup of weights and slots: 2 GB for VGG16 with Adam.
_LEAST_DISK, _ENOUGH_DISK = 0.1, 2.0  # GiB


def run_directory(out: Path) -> Finding:
    """Whether runs can be written below `out`; leaves nothing there."""
    place = _existing(out)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        mend = "Choose another directory with --out, or let this user write there."
        return Finding("run directory", BROKEN, f"{out}: {error.strerror}", mend)
    return Finding("run directory", OK, f"{out} can be written")


def disk(out: Path) -> Finding:
    """Room on the disk of the run directory."""
    free = shutil.disk_usage(_existing(out)).free / _GIB
    found = f"{free:.1f} GiB free"
    if free >= _ENOUGH_DISK:
        return Finding("disk", OK, found)
    mend = "Make room, or choose a directory on another disk with --out."
    return Finding("disk", BROKEN if free < _LEAST_DISK else NOTE, found, mend)


def data_sets() -> Finding:
    """What TensorFlow Datasets has prepared; only `--data tfds:NAME` reads it."""
    given = os.environ.get("TFDS_DATA_DIR")
    folder = Path(given or "~/tensorflow_datasets").expanduser()
    if folder.is_dir():
        names = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name != "downloads")
        return Finding("data sets", OK, f"{', '.join(names) or 'none yet'} in {folder}")
    if given:
        mend = "Set TFDS_DATA_DIR to the folder of prepared data sets, or unset it."
        return Finding("data sets", NOTE, f"TFDS_DATA_DIR is '{given}', which is no folder", mend)
    return Finding("data sets", OK, f"none yet; tfds:NAME would prepare them in {folder}")


def profile(path: Path | None, device: dict[str, Any]) -> Finding:
    """A timing profile of this device.

    Args:
        path: of a profile, every field of which is checked; None: any in the current folder.
        device: what `describe_device` said.
    """
    mend = f"{typed(command('profile', ['--help']))} says how to measure this device."
    if path is None:
        own = [str(p) for p in sorted(Path.cwd().glob("*.json")) if _device(p) == device["name"]]
        if own:
            return Finding("profile", OK, ", ".join(Path(one).name for one in own))
        return Finding("profile", NOTE, "none of this device in this folder", mend)
    try:
        profile = TimingProfile.load(path)
    except (OSError, ValueError) as error:
        return Finding("profile", BROKEN, str(error), mend)
    there = profile.device.get("name", "an unknown device")
    if there != device["name"]:
        return Finding("profile", NOTE, f"{path}: measured on '{there}', not here", mend)
    found = f"{path}: {profile.count} tensors, full step {profile.t_full / 1e3:.1f} ms"
    return Finding("profile", OK, f"{found}, {profile.settings}")


def _device(path: Path) -> str | None:
    """Name of the device that a file is a profile of; None where it is no profile."""
    try:
        return TimingProfile.load(path).device.get("name")
    except (OSError, ValueError):
        return None


def _existing(path: Path) -> Path:
    """The path, or the closest folder above it that is there."""
    whole = path.absolute()
    return next(place for place in (whole, *whole.parents) if place.exists())
