r"""Measure, once per device, what training each tensor of a model costs there.

Example::

    python -m elastic_tf profile --model mobilenet --alpha 0.75 \
        --input-size 160 --batch-size 4 --data birds --out mobilenet.json

It measures under the runtime settings of the environment (TF_ENABLE_ONEDNN_OPTS and others), names
them in the profile, and training uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import directory, format_table
from elastic_tf.timing.profile import TimingProfile

_SHOWN = 15  # tensors in a table
# Half of the steps were further from the median than this: the median of 20, the default, is then
# known to 8 % only (95 %), and a deadline planned with it no better. Three of the four tables in
# profiling/ have 1 %.
_MOST_SPREAD = 0.1
_COLUMNS = ("tensor", "shape", "t_dw:.3f:t_dw ms", "t_dy:.3f:t_dy ms", "share:.1%:of full step")


@dataclasses.dataclass(frozen=True)
class Settings(options.Step):
    """What to measure, and where to put it."""

    out: Path = option(help="JSON file for the profile")
    classes: int | None = option(None, help="classes of the head; those of --data if left out")
    data: str | None = option(None, help=options.DATA, check=options.images)
    repeats: int = option(20, help="timed steps behind each median")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, save and print."""
    settings = parse(Settings, __doc__ or "", arguments)
    directory(settings.out.parent)
    if settings.classes is None and settings.data is None:
        raise ValueError(
            "One of `classes` and `data` must be given. Received: none. Use --data, with the "
            "images that will be trained on."
        )
    from elastic_tf.app.commands.training import harness, sources
    from elastic_tf.timing.profiler import profile_model

    classes = settings.classes or sources.counts(settings)[0]
    print("Building the model and measuring its steps ...", flush=True)
    model = harness.compiled(harness.network(settings, classes), settings.optimizer, 1e-4)
    rng, size = np.random.default_rng(0), settings.batch_size
    side, channels = harness.input_shape(settings)
    x = rng.uniform(0, 255, (size, side, side, channels)).astype(np.float32)
    profile = profile_model(model, x, rng.integers(0, classes, size), repeats=settings.repeats)
    profile.save(settings.out)
    print(report(profile))
    print(f"Written to {settings.out}")


def report(profile: TimingProfile) -> str:
    """The tensors that cost most, and how sure the profile is."""
    full, cost = profile.t_full, profile.t_dw + profile.t_dy
    rows = [
        {
            "tensor": profile.tensors[k].name,
            "shape": "x".join(map(str, profile.tensors[k].shape)),
            "t_dw": profile.t_dw[k] / 1e3,
            "t_dy": profile.t_dy[k] / 1e3,
            "share": cost[k] / full,
        }
        for k in np.argsort(cost)[::-1][:_SHOWN]
    ]
    noise = f"noisy, the spread is above {_MOST_SPREAD:.0%}: profile again on an idle machine"
    return "\n".join(
        [
            format_table(rows, _COLUMNS),
            f"\nDevice: {profile.device['name']}, {profile.device['cores']} cores",
            f"Full step {full / 1e3:.2f} ms (spread {profile.spread:.0%}), forward pass "
            f"{profile.t_forward / 1e3:.2f} ms ({profile.t_forward / full:.0%}, may be off by "
            f"{profile.uncertainty:.1%}); {profile.share_attributed:.1%} of the backward time "
            f"attributed to {profile.count} tensors",
            f"The measurement is {noise if profile.spread > _MOST_SPREAD else 'fine'}",
            *[f"Times by differences of whole steps: {profile.note}"] * bool(profile.note),
        ]
    )
