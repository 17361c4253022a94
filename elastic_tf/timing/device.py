"""What a time was measured on: processor, threads, TensorFlow and its switches."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from elastic_tf.timing.runtime import RuntimeSettings, usable_cores


def describe_device() -> dict[str, Any]:
    """The device and the settings that step times depend on, as JSON values.

    Returns:
        `name`: the first GPU's name if TensorFlow sees one, else the processor's; `kind`: "gpu" or
        "cpu"; `cores` that this process may use; `inter_op_threads` and `intra_op_threads`, as set
        in the program or in the environment (0: TensorFlow chooses); `onednn`: whether oneDNN's
        kernels are on; `xla`: whether the compiler clusters ops by itself; `tensorflow`: its
        version; `system`.
    """
    # Seconds to import: run directories and doctor are read without it.
    import tensorflow as tf

    from elastic_tf.stack import runs_onednn

    gpus = tf.config.list_physical_devices("GPU")
    name = _processor()
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", gpus[0].name)
    asked = RuntimeSettings.of_environment()
    threads = tf.config.threading
    return {
        "name": name,
        "kind": "gpu" if gpus else "cpu",
        "cores": usable_cores(),
        "inter_op_threads": threads.get_inter_op_parallelism_threads() or asked.inter_op_threads,
        "intra_op_threads": threads.get_intra_op_parallelism_threads() or asked.intra_op_threads,
        "onednn": runs_onednn(),
        "xla": bool(tf.config.optimizer.get_jit()),
        "tensorflow": tf.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    """Name of the processor, or of the board where the processor has none (Raspberry Pi)."""
    for path, key in (("/proc/device-tree/model", ""), ("/proc/cpuinfo", "model name")):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if not key:
            return text.strip("\0 \n")
        for line in text.splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
