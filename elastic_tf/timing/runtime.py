"""What step times depend on: the device, and the settings of TensorFlow's runtime.

TensorFlow reads its settings once, when it starts; a process takes other ones only by starting
again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_INTER, _INTRA = "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"
_RESTARTED = "ELASTIC_TF_RESTARTED"


@dataclass(frozen=True)
class RuntimeSettings:
    """How TensorFlow runs a step; by default it decides."""

    onednn: bool | None = None  # whether oneDNN's kernels are used
    inter_op_threads: int = 0  # ops that may run at once
    intra_op_threads: int = 0  # threads that share one op
    xla: bool = False  # whether XLA compiles the step: `compile(jit_compile=True)`

    @classmethod
    def of_environment(cls, *, xla: bool = False) -> RuntimeSettings:
        """What environment variables ask for; XLA is asked for by `compile`."""
        onednn, inter, intra = (os.environ.get(name, "") for name in (_ONEDNN, _INTER, _INTRA))
        return cls(
            onednn=None if not onednn else onednn.lower() in {"1", "true"},
            inter_op_threads=int(inter) if inter.isdigit() else 0,
            intra_op_threads=int(intra) if intra.isdigit() else 0,
            xla=xla,
        )

    def environment(self) -> dict[str, str]:
        """This process's environment with these settings in it."""
        asked = {
            _ONEDNN: "" if self.onednn is None else str(int(self.onednn)),
            _INTER: str(self.inter_op_threads or ""),
            _INTRA: str(self.intra_op_threads or ""),
        }
        kept = {name: value for name, value in os.environ.items() if name not in asked}
        return {**kept, **{name: value for name, value in asked.items() if value}}

    def __str__(self) -> str:
        said = {
            f"oneDNN {'on' if self.onednn else 'off'}": self.onednn is not None,
            f"{self.inter_op_threads} inter-op threads": self.inter_op_threads,
            f"{self.intra_op_threads} intra-op threads": self.intra_op_threads,
            "XLA": self.xla,
        }
        return ", ".join(text for text, is_set in said.items() if is_set) or "TensorFlow's defaults"


def usable_cores() -> int:
    """Cores that this process may run on; all of them on macOS and Windows, which do not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def restart_under(settings: RuntimeSettings, command: Sequence[str]) -> None:
    """Start this program again under `settings`, unless it runs under them already.

    XLA is not among them: it is an argument of `compile`. `command` is as `sys.argv`.
    """
    environment = settings.environment()
    if environment == dict(os.environ) or os.environ.get(_RESTARTED):
        return
    print(f"Starting again with the settings of the profile: {settings}.", flush=True)
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command], {**environment, _RESTARTED: "1"})


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
