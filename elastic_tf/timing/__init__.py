"""What training each tensor costs on this device.

In: an elastic model and one batch. Out: a `TimingProfile`, measured by the TensorFlow profiler and
by the clock, and its JSON file. Here: what step times depend on.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import Any


def usable_cores() -> int:
    """Cores that this process may run on; all of them on macOS and Windows, which do not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_device() -> dict[str, Any]:
    """The device and the settings that step times depend on, as JSON values.

    The name is that of the first GPU if TensorFlow sees one, else of the board or the processor;
    `cores` are those that this process may use; threads are as set in the program or in the
    environment (0: TensorFlow chooses); `xla` is whether the compiler clusters ops by itself.
    """
    # seconds to import: run directories and doctor are read without it
    import tensorflow as tf

    from elastic_tf.stack import runs_onednn

    gpus = tf.config.list_physical_devices("GPU")
    name = _processor()
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", gpus[0].name)
    threads = tf.config.threading
    told = (os.environ.get(f"TF_NUM_{kind}_THREADS", "") for kind in ("INTEROP", "INTRAOP"))
    inter, intra = (int(text) if text.isdigit() else 0 for text in told)
    return {
        "name": name,
        "kind": "gpu" if gpus else "cpu",
        "cores": usable_cores(),
        "inter_op_threads": threads.get_inter_op_parallelism_threads() or inter,
        "intra_op_threads": threads.get_intra_op_parallelism_threads() or intra,
        "onednn": runs_onednn(),
        "xla": bool(tf.config.optimizer.get_jit()),
        "tensorflow": tf.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    """Name of the board where there is one (Raspberry Pi), or of the processor."""
    for path, pattern in (
        ("/proc/device-tree/model", r"([^\0\n]+)"),
        ("/proc/cpuinfo", r"model name\s*: (.+)"),
    ):
        with contextlib.suppress(OSError):
            text = Path(path).read_text(encoding="utf-8", errors="replace")
            if found := re.search(pattern, text):
                return found[1].strip()
    return platform.processor() or platform.machine()
