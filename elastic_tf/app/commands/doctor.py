"""Check the installation by training a step, and say what to fix.

Example::

    python -m elastic_tf doctor

The exit code is 1 if it cannot train, else 0.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Sequence

from elastic_tf.app.commands.commandline import parse

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


@dataclasses.dataclass(frozen=True)
class Settings:
    """There is nothing to choose."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, print, and end with exit code 1 where training is impossible."""
    parse(Settings, __doc__ or "", arguments)
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
