"""What comes before a training: is all installed, what do tensors cost, what will it take."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.settings import DATA, Step, images
from elastic_tf.files import directory, format_table
from elastic_tf.timing.profile import TimingProfile

_SECONDS = 150  # for TensorFlow to start and to train a step: ten times what 2 slow cores take
# In a process of its own: a TensorFlow that does not fit the processor ends its process.
_STEP = """
import json, numpy as np, elastic_tf as et, tensorflow as tf
from elastic_tf.timing import describe_device
of = tf.keras.layers
model = tf.keras.Sequential([of.Input((2,)), of.Dense(3), of.Dense(1)])
model = et.ElasticModel.from_model(model)
model.compile("sgd", "mse")
model.set_mask(np.array([False, False, True, True]))
model.fit(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), batch_size=4, verbose=0)
print(json.dumps({**describe_device(), "gpus": len(tf.config.list_physical_devices("GPU"))}))
"""
_COSTLY, _FULLEST = 15, 12  # tensors in a table
# Half of the steps were further from the median than this: the median of 20, the default, is then
# known to 8 % only (95 %), and a deadline planned with it no better. Three of the four tables in
# profiling/ have 1 %.
_MOST_SPREAD = 0.1
_LONGEST = 60  # letters of a name
_MIB = 2**20
_TIMES = ("tensor", "shape", "t_dw:.3f:t_dw ms", "t_dy:.3f:t_dy ms", "share:.1%:of full step")
_BYTES = ("tensor", "kind", "bytes:.2f:MiB", "first::from op", "last::to op")


@dataclasses.dataclass(frozen=True)
class Doctor:
    """There is nothing to choose."""


def doctor(arguments: Sequence[str] | None = None) -> None:
    """Check the installation by training a step, and say what to fix.

    Example::

        python -m elastic_tf doctor

    The exit code is 1 if it cannot train, else 0.
    """
    parse(Doctor, doctor.__doc__, arguments)
    wrong = [one for one in (packages(), trains()) if one]
    if wrong:
        print("\n".join(wrong) + "\nIt cannot train before this is fixed.")
        raise SystemExit(1)
    print("Ready to train.")


def packages() -> str:
    """What pip misses, and how to install it; empty where the packages fit together."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    lines = [one.replace("_", "-") for one in done.stdout.splitlines()]
    wrong = " ".join(one for one in lines if one.startswith("elastic-tf "))
    return wrong and f"{wrong} {sys.executable} -m pip install . in the checkout installs it."


def trains() -> str:
    """Train a step in a child process and print where; what went wrong if it cannot."""
    words = [sys.executable, "-c", _STEP]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"TensorFlow made no step in {_SECONDS} s. Look at the memory that is free."
    if done.returncode == 0:
        told = json.loads(done.stdout.splitlines()[-1])
        where = f"{told['name']} ({told['kind']})"
        print(f"TensorFlow {told['tensorflow']} trains on {where}, and sees {told['gpus']} GPUs.")
        return ""
    if done.returncode == -signal.SIGILL:
        return "TensorFlow does not fit this processor: those of PyPI for x86 need AVX."
    last = (done.stderr.strip() or f"ended with code {done.returncode}").splitlines()[-1]
    return f"TensorFlow: {last}. Look at ulimit -a, or install the packages anew."


@dataclasses.dataclass(frozen=True)
class _OfImages(Step):
    """A step on images that may be at hand, or told in numbers."""

    data: str | None = option(None, help=DATA, check=images)
    classes: int | None = option(None, help="classes of the head; those of --data if left out")

    def need(self, name: str) -> None:
        """Refuse to do without both images and that number."""
        if self.data is None and getattr(self, name) is None:
            raise ValueError(
                f"One of `data` and `{name}` must be given. Received: none. Use --data, with the "
                "images that will be trained on."
            )


@dataclasses.dataclass(frozen=True)
class Profile(_OfImages):
    """What to measure, and where to put it."""

    out: Path = option(help="JSON file for the profile")
    repeats: int = option(20, help="timed steps behind each median")


def profile(arguments: Sequence[str] | None = None) -> None:
    r"""Measure, once per device, what training each tensor of a model costs there.

    Example::

        python -m elastic_tf profile --model mobilenet --alpha 0.75 \
            --input-size 160 --batch-size 4 --data birds --out mobilenet.json

    It measures under the runtime settings of the environment (TF_ENABLE_ONEDNN_OPTS and others),
    names them in the profile, and training uses them.
    """
    settings = parse(Profile, profile.__doc__, arguments)
    directory(settings.out.parent)
    settings.need("classes")
    from elastic_tf.app.commands import harness
    from elastic_tf.timing.profiler import profile_model

    classes = settings.classes or harness.counts(settings, str(settings.data))[0]
    print("Building the model and measuring its steps ...", flush=True)
    model = harness.untrained(settings, classes)
    rng, size = np.random.default_rng(0), settings.batch_size
    side, channels = harness.input_shape(settings)
    x = rng.uniform(0, 255, (size, side, side, channels)).astype(np.float32)
    measured = profile_model(model, x, rng.integers(0, classes, size), repeats=settings.repeats)
    measured.save(settings.out)
    print(told(measured))
    print(f"Written to {settings.out}")


def told(profile: TimingProfile) -> str:
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
        for k in np.argsort(cost)[::-1][:_COSTLY]
    ]
    noise = f"noisy, the spread is above {_MOST_SPREAD:.0%}: profile again on an idle machine"
    return "\n".join(
        [
            format_table(rows, _TIMES),
            f"\nDevice: {profile.device['name']}, {profile.device['cores']} cores",
            f"Full step {full / 1e3:.2f} ms (spread {profile.spread:.0%}), forward pass "
            f"{profile.t_forward / 1e3:.2f} ms ({profile.t_forward / full:.0%}, may be off by "
            f"{profile.uncertainty:.1%}); {profile.share_attributed:.1%} of the backward time "
            f"attributed to {profile.count} tensors",
            f"The measurement is {noise if profile.spread > _MOST_SPREAD else 'fine'}",
            *[f"Times by differences of whole steps: {profile.note}"] * bool(profile.note),
        ]
    )


@dataclasses.dataclass(frozen=True)
class Forecast(_OfImages):
    """What to foretell."""

    images: int | None = option(None, help="training images; those of --data", check=checks.count)
    rho: float = option(0.5, help="allowed step time / full step time", check=checks.rho)
    epochs: int = option(5, help="passes over the images", check=checks.count)


def forecast(arguments: Sequence[str] | None = None) -> None:
    r"""Say what a training will take on this device, before it runs: seconds and memory.

    Example::

        python -m elastic_tf forecast --model mobilenet --alpha 0.75 --input-size 128 \
            --data birds --epochs 5 --rho 0.35

    Without the images at hand: --images 1200 --classes 40 (2 if left out). Forward passes are
    timed, no step is run. The head alone, an elastic training and a full one are compared; reading
    images and evaluation are not counted.
    """
    settings = parse(Forecast, forecast.__doc__, arguments)
    settings.need("images")
    import tensorflow as tf

    from elastic_tf.app.commands import harness
    from elastic_tf.choose.budget.forecast import forecast as foretold

    found = (2, 0)
    if settings.data is not None and not (settings.classes and settings.images):
        found = harness.counts(settings, settings.data, all_images=settings.images is None)
    classes, count = settings.classes or found[0], settings.images or found[1]
    size = checks.count("batch_size", settings.batch_size, most=count)
    side, channels = harness.input_shape(settings)
    batch = np.zeros((size, side, side, channels), np.float32), np.zeros(size, np.int64)
    batches = tf.data.Dataset.from_tensors(batch).repeat(count // size)
    model = harness.untrained(settings, classes)
    print(foretold(model, batches, rho=settings.rho, epochs=settings.epochs, keeps=True))


@dataclasses.dataclass(frozen=True)
class Memory(Step):
    """What to say, and where to draw it."""

    classes: int = option(1000, help="classes of the head")
    last: int | None = option(None, help="train so many tensors, the last; all if left out")
    limit: str | None = option(
        None, help="memory that there is: '256 MiB', '2 GiB' or bytes", check=checks.memory
    )
    out: Path | None = option(None, help="the picture (.png, .pdf, .svg) or the numbers (.json)")


def memory(arguments: Sequence[str] | None = None) -> None:
    r"""Say what memory a training step needs, and whether it fits, before it runs.

    Example::

        python -m elastic_tf memory --model mobilenet_v2 --input-size 128 --batch-size 16 \
            --limit "256 MiB" --out memory.png

    The step is traced op by op, as TensorFlow runs it, and does not run. The library is not
    counted. --last trains the last tensors alone. --out draws what is in use when, or writes it as
    JSON.
    """
    settings = parse(Memory, memory.__doc__, arguments)
    from elastic_tf.app.commands import harness
    from elastic_tf.memory import largest_batch
    from elastic_tf.memory import step as step_of

    model = harness.untrained(settings, settings.classes)
    count = len(model.tensors)
    trained = count if settings.last is None else checks.count("last", settings.last, most=count)
    mask = np.arange(count) >= count - trained
    step = step_of(model, settings.batch_size, mask)
    at = step.fullest
    used = [one for one in step.tensors if one.first <= at <= one.last]
    rows = [
        {**one._asdict(), "tensor": one.name[-_LONGEST:], "bytes": one.bytes / _MIB}
        for one in sorted(used, key=lambda one: -one.bytes)[:_FULLEST]
    ]
    lasting = sum(one.bytes for one in step.tensors if one.kind in ("weight", "slots")) / _MIB
    print(f"Most is in use at op {at} of {len(step.ops)}, {step.ops[at]}:")
    print(format_table(rows, _BYTES))
    print(
        f"\nBatch {step.batch_size}: TensorFlow takes {step.peak / _MIB:.1f} MiB, "
        f"of it weights and slots {lasting:.1f}"
    )
    if settings.limit is not None:
        limit = checks.memory("limit", settings.limit)
        most = largest_batch(model, limit, mask)
        fits = "fits" if step.peak <= limit else "does not fit"
        largest = f"the largest batch that does is {most}" if most else "no batch does"
        print(f"{limit / _MIB:.1f} MiB: it {fits}; {largest}")
    if settings.out is not None:
        if settings.out.suffix == ".json":
            step.save(settings.out)
        else:
            from elastic_tf import plots

            plots.save(plots.memory_map(step), settings.out)
        print(f"Written to {settings.out}")
