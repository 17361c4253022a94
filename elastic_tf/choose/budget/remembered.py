"""What running steps taught of a device, kept for the next training of the same model there.

A prior may be off by a factor: of the savings that it foretells a device delivers more or less. The
factor that was seen last is kept in the user's cache directory, in a small file for each device,
software, model, batch and optimizer. ELASTIC_TF_CACHE names another directory; empty, nothing is
kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import platformdirs

from elastic_tf.files import now, to_json, write_json
from elastic_tf.timing.profile import TimingProfile

_PLACE = "ELASTIC_TF_CACHE"
_MOST = 10.0  # a factor beyond is no measurement
_SAID = (
    "A training on this device delivered {0:.0%} of the savings foretold ({1}): counted on again."
)


def recalled(profile: TimingProfile) -> tuple[TimingProfile, str]:
    """A prior, corrected by what was seen last, and a line that says so; empty where nothing was.

    A file that cannot be read counts as none.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        file = _file(profile)
        if file is not None:
            found = json.loads(file.read_text(encoding="utf-8"))
            delivered = float(found["delivered"])
            if 1.0 / _MOST < delivered < _MOST:
                return corrected(profile, delivered), _SAID.format(delivered, found["created"])
    return profile, ""


def corrected(profile: TimingProfile, delivered: float) -> TimingProfile:
    """The profile of a device that delivers this part of its savings; a full step takes as long."""
    spared = math.fsum(item.time for item in profile.items)
    delivered = min(delivered, profile.t_full / spared) if spared else delivered
    items, prefix = (
        tuple(replace(item, time=delivered * item.time) for item in part)
        for part in (profile.items, profile.prefix)
    )
    forward = max(profile.t_full - math.fsum(item.time for item in items), 0.0)
    if math.fsum(item.time for item in prefix) > forward:
        prefix = profile.prefix
    return replace(profile, items=items, prefix=prefix, t_forward=forward)


def remember(profile: TimingProfile, delivered: float) -> None:
    """Keep what part of this prior's savings was delivered; where that cannot be, nothing is."""
    with contextlib.suppress(OSError):
        file = _file(profile)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"delivered": delivered, "created": now()})


def _file(profile: TimingProfile) -> Path | None:
    """Where it is kept."""
    place = os.environ.get(_PLACE, platformdirs.user_cache_dir("elastic_tf"))
    if not place:
        return None
    names = ("tensors", "input_shape", "batch_size", "optimizer", "device")
    known = json.dumps(to_json({name: getattr(profile, name) for name in names}), sort_keys=True)
    return Path(place) / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.json"
