"""Profiling the device again during a training, for devices that throttle (Sec. 5.4)."""

from __future__ import annotations

from collections.abc import Callable

from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.importance.probe import Probe
from elastic_tf.selection.records import ProfileRecord
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.timing.profiler import Profiler

# One step of each kind under the profiler and two by the clock: 0.3 % of 1,500 steps.
_REPEATS = 2


class Reprofiling:
    """Profiles of one training.

    Args:
        model: the model that is trained.
        profile: what was measured before the training.
        probe: where a batch is taken from.
        every: epochs between two profiles; None makes none.
        clock: seconds now.

    Attributes:
        records: one for each profile.
        first_epoch: that the training began with, before it was interrupted.
    """

    def __init__(
        self,
        model: ElasticMixin,
        profile: TimingProfile,
        *,
        probe: Probe,
        every: int | None,
        clock: Callable[[], float],
    ) -> None:
        self.records: list[ProfileRecord] = []
        self._model = model
        self._profile = profile
        self._probe = probe
        self._every = every
        self._clock = clock
        self.first_epoch: int | None = None
        self._profiler: Profiler | None = None

    def is_due(self, epoch: int) -> bool:
        """Whether a profile is due before that epoch; never before the first one."""
        if self.first_epoch is None:
            self.first_epoch = epoch
        passed = epoch - self.first_epoch
        return self._every is not None and passed > 0 and passed % self._every == 0

    def measure(self, epoch: int) -> TimingProfile:
        """The device as it is now; the first time also traces the two steps measured."""
        started = self._clock()
        is_first = self._profiler is None
        if self._profiler is None:
            self._profiler = Profiler(
                self._model,
                *self._probe.batch(self._profile.batch_size),
                calibration=self._profile.calibration,
            )
        profile = self._profiler.measure(repeats=_REPEATS, settled=False)
        self.records.append(ProfileRecord(epoch, profile, self._clock() - started, is_first))
        return profile
