"""Energy used between two moments, where the machine has a sensor for it.

Two kinds of sensors are read: the energy counters of x86 processors (RAPL, through Linux's powercap
interface), and the power monitor INA3221 of Jetson boards, whose power is integrated over time.
Without one there is no number.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

_MICRO = 1e-6
_MILLI = 1e-3
_COUNTER_PERIOD = 10.0  # seconds; a counter of 65 kJ wraps around after minutes at the soonest
_POWER_PERIOD = 0.05  # seconds; the monitors of Jetson boards average over some milliseconds
# Rails that feed a whole board; the others are parts of them.
_INPUT_RAILS = frozenset({"VDD_IN", "POM_5V_IN", "5V_IN"})


class Sensor(Protocol):
    """What a meter reads.

    Attributes:
        name: what is measured.
        period: seconds between two readings, at most.
    """

    name: str
    period: float

    def advance(self) -> float:
        """Joules since the reading before; OSError or ValueError where there is none."""


class Counters:
    """Energy counters that start again from zero at their end.

    Args:
        name: what is measured.
        zones: folders with `energy_uj` and `max_energy_range_uj`.
    """

    period = _COUNTER_PERIOD

    def __init__(self, name: str, zones: Iterable[Path]) -> None:
        self.name = name
        self._ranges = {zone / "energy_uj": _number(zone / "max_energy_range_uj") for zone in zones}
        self._last = {path: _number(path) for path in self._ranges}

    def advance(self) -> float:
        """Joules since the reading before, over all counters."""
        now = {path: _number(path) for path in self._ranges}
        passed = ((now[path] - self._last[path]) % limit for path, limit in self._ranges.items())
        total = _MICRO * sum(passed)
        self._last = now
        return total


class Power:
    """Volts and amperes of a rail, integrated by the trapezoidal rule.

    Args:
        name: what is measured.
        volts: file of the voltage in millivolts.
        amperes: file of the current in milliamperes.
        clock: seconds.
    """

    period = _POWER_PERIOD

    def __init__(
        self, name: str, volts: Path, amperes: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._volts, self._amperes, self._clock = volts, amperes, clock
        self._last = self._read()

    def advance(self) -> float:
        """Joules since the reading before."""
        before, watts_before = self._last
        now, watts = self._last = self._read()
        return (now - before) * (watts + watts_before) / 2

    def _read(self) -> tuple[float, float]:
        watts = _MILLI * _number(self._volts) * _MILLI * _number(self._amperes)
        return self._clock(), watts


class Meter:
    """Adds up what a sensor tells, from `start` to `stop` or in a `with` block.

    The energy between two moments is the difference of `joules()`.
    """

    def __init__(self, sensor: Sensor) -> None:
        self.name = sensor.name
        self._sensor = sensor
        self._total: float | None = 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def joules(self) -> float | None:
        """Energy since the meter was made; None from the first reading on that failed."""
        with self._lock:
            if self._total is not None:
                try:
                    self._total += self._sensor.advance()
                except (OSError, ValueError):
                    self._total = None  # what was missed cannot be known later
            return self._total

    def start(self) -> None:
        """Read as often as the sensor needs it, in a thread."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _sample(self) -> None:
        while not self._stopped.wait(self._sensor.period):
            self.joules()


def find_sensor(sysfs: str | Path = "/sys") -> Sensor | None:
    """The sensor of this machine: the processor's energy counters, or a Jetson board's input power.

    RAPL counts processors and, where it is told apart, memory. On a Jetson the whole board is
    measured; a board whose monitor has no rail that feeds all of it counts as without a sensor.

    Args:
        sysfs: where Linux's sysfs is mounted.

    Returns:
        The sensor, or None.

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
            return Counters("RAPL " + " + ".join(_text(zone / "name") for zone in zones), zones)
        for label in sorted((root / "hwmon").glob("hwmon*/in*_label")):
            rail = _text(label)
            if rail in _INPUT_RAILS and _text(label.parent / "name").startswith("ina"):
                number = label.name[len("in") : -len("_label")]
                volts, amperes = f"in{number}_input", f"curr{number}_input"
                return Power(f"INA {rail}", label.parent / volts, label.parent / amperes)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"The energy sensor cannot be read: {error}. Energy is not measured. Let this user "
            "read it (sudo chmod a+r on that file).",
            stacklevel=2,
        )
    return None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _number(path: Path) -> float:
    return float(_text(path))
