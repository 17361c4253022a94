"""The beginning of an elastic `fit`: its parts, made from what the callback was told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_tf.backup.recovery import Recovery
from elastic_tf.budget.choosing import Chooser
from elastic_tf.budget.control import Control
from elastic_tf.budget.course import Course
from elastic_tf.budget.ratio import doubt
from elastic_tf.budget.reprofiling import Reprofiling
from elastic_tf.budget.steady_clock import SteadyClock
from elastic_tf.engine import fit_data, replicas
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.importance.tracking import Worth

if TYPE_CHECKING:
    from elastic_tf.callback import ElasticCallback


def course(callback: ElasticCallback, clock: Callable[[], float], *, is_again: bool) -> Course:
    """All that one `fit` needs.

    Args:
        callback: whose `model` and `params` Keras has set.
        clock: seconds now.
        is_again: another `fit` with the callback has ended before.
    """
    model, steady = callback.model, SteadyClock(clock)
    control = _control(callback, steady, already=_since_fit(callback, clock))
    chooser = _chooser(callback, control, steady)
    chooser.check_rho()
    made = Course(
        model,
        chooser=chooser,
        control=control,
        reprofiling=Reprofiling(
            model,
            callback.profile,
            probe=callback.probe,
            every=callback.reprofile_every,
            clock=steady,
        ),
        required=callback.required,
        reports_ratio=bool(callback.control) and callback.deadline is None,
    )
    if callback.log_dir is not None:
        from elastic_tf.runs.board import Board  # matplotlib takes a while to load

        names = [tensor.name.split(":")[0] for tensor in model.tensors]
        made.board = chooser.board = Board(callback.log_dir, names)
    if callback.backup is not None:
        made.recovery = Recovery(model, callback.backup, made)
        made.is_anew = is_again
    return made


def check_replicas(model: ElasticMixin, *, deadline: bool, reprofile: bool) -> None:
    """Refuse what one worker or replica cannot decide for all.

    Raises:
        ValueError: a deadline over several workers, or profiling on several replicas.
    """
    strategy = model.distribute_strategy
    if deadline and replicas.spans_workers(strategy):
        raise ValueError(
            "`deadline` must be None over several workers: each has a clock of its own, and all "
            f"must stop at the same step. Received: {replicas.count(strategy)} replicas in "
            "several workers. Give `rho` instead."
        )
    if reprofile and replicas.count(strategy) > 1:
        raise ValueError(
            "`reprofile_every` must be None with several replicas: a profile is measured on one. "
            f"Received: {replicas.count(strategy)} replicas. Profile each device before."
        )


def batch_size(model: ElasticMixin) -> int | None:
    """Samples in a batch of one replica, if the data of the `fit` that begins tell it."""
    size = fit_data.batch_size(model._elastic.data)
    return None if size is None else -(-size // replicas.count(model.distribute_strategy))


def worth(callback: ElasticCallback) -> Worth:
    """What evaluates the importance."""
    return Worth(
        callback.importance,
        callback.probe,
        gradient_probe=callback.gradient_probe,
        smoothing=callback.smoothing,
        micro_batch_size=callback.profile.batch_size or None,
    )


def _control(callback: ElasticCallback, clock: Callable[[], float], *, already: float) -> Control:
    # a full step beside the training, and what follows from it, is for one replica
    is_alone = replicas.count(callback.model.distribute_strategy) == 1
    return Control(
        callback.model,
        clock=clock,
        epochs=callback.params["epochs"],
        steps=callback.params["steps"],
        share=callback.control if is_alone else 0.0,
        band=callback.band,
        doubt=doubt(callback.profile),
        deadline=callback.deadline,
        already=already,
    )


def _chooser(callback: ElasticCallback, control: Control, clock: Callable[[], float]) -> Chooser:
    profile, size = callback.profile, callback.probe.size
    chooser = Chooser(
        callback.model,
        profile,
        rho=callback.rho,
        interval=callback.interval,
        required=callback.required,
        worth=worth(callback),
        control=control,
        clock=clock,
        probe_seconds=1e-6 * profile.t_full * size / (profile.batch_size or size),
    )
    chooser.verbose = bool(callback.verbose)
    return chooser


def _since_fit(callback: ElasticCallback, clock: Callable[[], float]) -> float:
    """Seconds that Keras has spent on the data since `fit` was called."""
    started = callback.model._elastic.fit_started
    if started is None or clock is not time.perf_counter:
        return 0.0
    return time.perf_counter() - started
