"""Settings of TensorFlow's runtime that step times depend on, and how to run under them.

TensorFlow reads them once, when it starts; a process takes other ones only by starting again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_INTER, _INTRA = "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"
_RESTARTED = "ELASTIC_TF_RESTARTED"


@dataclass(frozen=True)
class RuntimeSettings:
    """How TensorFlow runs a step.

    Attributes:
        onednn: whether oneDNN's kernels are used; None: TensorFlow decides by the processor.
        inter_op_threads: ops that may run at once; 0: TensorFlow decides.
        intra_op_threads: threads that share one op; 0: TensorFlow decides.
        xla: whether XLA compiles the step (`compile(jit_compile=True)`).
    """

    onednn: bool | None = None
    inter_op_threads: int = 0
    intra_op_threads: int = 0
    xla: bool = False

    @classmethod
    def of_environment(
        cls, environment: Mapping[str, str] | None = None, *, xla: bool = False
    ) -> RuntimeSettings:
        """What environment variables ask for; XLA is asked for by `compile`."""
        given = os.environ if environment is None else environment
        onednn = given.get(_ONEDNN, "")
        return cls(
            onednn=None if not onednn else onednn.lower() in {"1", "true"},
            inter_op_threads=_threads(given.get(_INTER, "")),
            intra_op_threads=_threads(given.get(_INTRA, "")),
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
        parts = []
        if self.onednn is not None:
            parts.append(f"oneDNN {'on' if self.onednn else 'off'}")
        if self.inter_op_threads:
            parts.append(f"{self.inter_op_threads} inter-op threads")
        if self.intra_op_threads:
            parts.append(f"{self.intra_op_threads} intra-op threads")
        return ", ".join([*parts, *["XLA"] * self.xla]) or "TensorFlow's defaults"


@dataclass(frozen=True)
class SettingsTrial:
    """One setting tried on a device.

    Attributes:
        settings: what was tried.
        step: microseconds of a full training step, median; None where it could not run.
        ratio: its step time / that under the defaults, timed in turn; None where it could not run.
        error: why it could not run; empty where it did.
    """

    settings: RuntimeSettings
    step: float | None
    ratio: float | None
    error: str = ""


def usable_cores() -> int:
    """Cores that this process may run on, fewer than there are under `taskset` or in a container.

    Returns:
        At least 1. Those that the system counts where it does not tell (macOS, Windows).
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def restart_under(settings: RuntimeSettings, command: Sequence[str]) -> None:
    """Start this program again under `settings`, unless it runs under them already.

    Args:
        settings: threads and oneDNN are taken from here; XLA is an argument of `compile`.
        command: the program's arguments, as `sys.argv`.
    """
    environment = settings.environment()
    if environment == dict(os.environ) or os.environ.get(_RESTARTED):
        return
    print(f"Starting again with the settings of the profile: {settings}.", flush=True)
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command], {**environment, _RESTARTED: "1"})


def _threads(text: str) -> int:
    return int(text) if text.isdigit() else 0
