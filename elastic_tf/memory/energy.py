"""Energy used between two moments, where the machine has a sensor for it.

Read are the energy counters of x86 processors (RAPL, through Linux's powercap interface), and the
power monitor INA3221 of Jetson boards, whose power is integrated over time.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

_COUNTER_PERIOD = 10.0  # seconds; a counter of 65 kJ wraps around after minutes at the soonest
_POWER_PERIOD = 0.05  # seconds; the monitors of Jetson boards average over some milliseconds
# Rails that feed a whole board; the others are parts of them.
_INPUT_RAILS = frozenset({"VDD_IN", "POM_5V_IN", "5V_IN"})


class Meter:
    """Adds up a sensor's readings, from `start` to `stop` in a thread, as often as it needs.

    Args:
        name: of the sensor.
        period: seconds between two readings, at most.
        advance: joules since the reading before; OSError or ValueError if it fails.
    """

    def __init__(self, name: str, period: float, advance: Callable[[], float]) -> None:
        self.name, self._period, self._advance = name, period, advance
        self._total: float | None = 0.0
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def joules(self) -> float | None:
        """Energy since the meter was made; None from the first reading on that failed."""
        with self._lock:
            if self._total is not None:
                try:
                    self._total += self._advance()
                except (OSError, ValueError):
                    self._total = None  # what was missed cannot be known later
            return self._total

    def start(self) -> None:
        """Begin to read."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(self._period):
            self.joules()


def find_sensor(sysfs: str | Path = "/sys") -> Meter | None:
    """A meter of this machine: of processors and memory by RAPL, or of a whole Jetson board.

    A board whose monitor has no rail that feeds all of it counts as without a sensor.

    Warns:
        UserWarning: there is a sensor that cannot be read.
    """
    root = Path(sysfs) / "class"
    try:
        zones = [
            zone
            for zone in sorted((root / "powercap").glob("intel-rapl:*"))
            if _text(zone / "name").startswith(("package", "dram"))
        ]
        if zones:
            name = "RAPL " + " + ".join(_text(zone / "name") for zone in zones)
            return Meter(name, _COUNTER_PERIOD, _counted(zones))
        for label in sorted((root / "hwmon").glob("hwmon*/in*_label")):
            rail = _text(label)
            if rail in _INPUT_RAILS and _text(label.parent / "name").startswith("ina"):
                number = label.name[len("in") : -len("_label")]
                volts, amperes = f"in{number}_input", f"curr{number}_input"
                advance = _integrated(label.parent / volts, label.parent / amperes)
                return Meter(f"INA {rail}", _POWER_PERIOD, advance)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"The energy sensor cannot be read: {error}. Energy is not measured. Let this user "
            "read it (sudo chmod a+r on that file).",
            stacklevel=2,
        )
    return None


def _counted(zones: Sequence[Path]) -> Callable[[], float]:
    """Joules of counters in microjoules, which start again from zero at their end."""
    ranges = {zone / "energy_uj": _number(zone / "max_energy_range_uj") for zone in zones}
    last = {path: _number(path) for path in ranges}

    def advance() -> float:
        now = {path: _number(path) for path in ranges}
        passed = sum((now[path] - last[path]) % limit for path, limit in ranges.items())
        last.update(now)
        return 1e-6 * passed

    return advance


def _integrated(volts: Path, amperes: Path) -> Callable[[], float]:
    """Joules of a rail, from millivolts and milliamperes by the trapezoidal rule."""

    def reading() -> tuple[float, float]:
        return time.monotonic(), 1e-6 * _number(volts) * _number(amperes)

    last = reading()

    def advance() -> float:
        nonlocal last
        (before, watts_before), (now, watts) = last, reading()
        last = now, watts
        return (now - before) * (watts + watts_before) / 2

    return advance


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _number(path: Path) -> float:
    return float(_text(path))
