"""SIGTERM and SIGINT: the step is finished and saved before the process ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SHELL = 128  # a shell reports a process that a signal ended as this and its number


class Interruptions:
    """Notes the first signal, and leaves a second one to who had them before.

    Attributes:
        received: number of the signal; None before one has come.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def catch(self) -> None:
        """Note signals from now on; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)

    def release(self) -> None:
        """Leave signals to who had them before."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def obey(self) -> None:
        """End the process if a signal was received.

        Raises:
            SystemExit: 130 after SIGINT, 143 after SIGTERM.
        """
        if self.received is not None:
            print("Saved. The same command goes on from here.")
            raise SystemExit(_SHELL + self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.release()
        print(f"Received {signal.Signals(number).name}: the step is finished and saved first.")
