"""The trainings behind a comparison of methods, and the rows of its tables."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elastic_tf import baselines
from elastic_tf.commands.comparing import trials, verdicts
from elastic_tf.commands.options import Adaptation
from elastic_tf.runs import run as runs

# What a row tells as the mean of its trainings' results.
_MEANS = {
    "raw_seconds": "training_seconds",
    "ratio": "achieved_ratio",
    "share_beside_steps": "share_beside_steps",
    "flops_ratio": "flops_ratio",
    "peak_memory_bytes": "peak_memory_bytes",
    "activation_bytes": "activation_bytes",
}
# Seconds above those of the reference that count as equal: what is measured varies as much.
_EQUAL = 1.03


class Contender(NamedTuple):
    """A method and the share of the step time that it is given, None for those that take none."""

    name: str  # "elastic@0.5"
    method: str
    rho: float | None


Plan = dict[Contender, tuple[float, int]]  # learning rate and epochs of each method


def contenders(text: str) -> list[Contender]:
    """Methods from a command line, as in "full,elastic@0.5".

    Raises:
        ValueError: an unknown method, or a `rho` where there must be none.
    """
    found = []
    for name in dict.fromkeys(part.strip() for part in text.split(",")):
        method, _, share = name.partition("@")
        takes_rho = baselines.get(method).needs_profile
        if bool(share) != takes_rho:
            rule = f"takes a rho, as in {method}@0.5" if takes_rho else "takes no rho"
            raise ValueError(f"The method '{method}' {rule}. Received: {name!r}.")
        found.append(Contender(name, method, float(share) if share else None))
    return found


class Contest:
    """Runs what a comparison needs, each training once.

    Args:
        settings: of the command `compare`.
        launch: trains.

    Attributes:
        allowed_seconds: at equal seconds, at reference speed; not a number before they are known.

    Raises:
        ValueError: settings that ask for what cannot be compared.
    """

    def __init__(self, settings: Any, launch: trials.Launch) -> None:
        self._settings = settings
        self._launch = launch
        self._contenders = contenders(settings.methods)
        self._rates = [float(part) for part in settings.rates.split(",")]
        budget, _, share = (settings.budget or f"{settings.reference}:{_EQUAL}").rpartition(":")
        self._budget, self._share = budget, float(share)
        known = [one.name for one in self._contenders]
        for name, one in (("reference", settings.reference), ("budget", budget)):
            if one not in known:
                raise ValueError(
                    f"`{name}` must name one of the methods {', '.join(known)}. Received: {one!r}."
                )
        if not 0 < settings.validation < 1:
            raise ValueError(
                "Rates are chosen on a validation part: `validation` must be in (0, 1). Received: "
                f"{settings.validation}."
            )
        self._done: dict[Path, runs.Run] = {}
        self.allowed_seconds = math.nan
        self._heads = [self._head(seed) for seed in range(settings.seeds)]
        self._profile = settings.profile
        if self._profile is None and any(one.rho is not None for one in self._contenders):
            if self._heads[0] is not None:  # it knows how many classes there are
                classes = len(_result(self._heads[0])["class_names"])
                path = settings.out / "profile.json"
                self._profile = trials.profiled(path, classes, vars(settings))

    @property
    def full_step_seconds(self) -> float:
        """One full step, the median over all trainings."""
        found = [_result(run)["full_step_seconds"] for run in self._done.values()]
        return float(np.median(found))

    @property
    def head_seconds(self) -> list[float]:
        """Of the trainings of the head that all methods start from."""
        return [0.0 if one is None else _result(one)["training_seconds"] for one in self._heads]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """A row for each method, at equal epochs and, unless it is left out, at equal seconds."""
        epochs = self._settings.epochs
        plan = {one: (self._best_rate(one, epochs), epochs) for one in self._contenders}
        plans = {"equal_epochs": plan}
        if self._settings.equal == "both":
            plans["equal_seconds"] = self._for_equal_seconds(plan)
        for one in plans.values():  # all trainings: what a full step takes is known afterwards
            self._rows(one)
        return {name: self._rows(one) for name, one in plans.items()}

    def _for_equal_seconds(self, plan: Plan) -> Plan:
        """Epochs for the seconds of the budget."""
        seconds = {one.name: self._seconds(one, *chosen) for one, chosen in plan.items()}
        once, each = seconds[self._budget]
        allowed = self.allowed_seconds = self._share * (once + self._settings.epochs * each)
        return {
            one: (rate, max(1, int((allowed - seconds[one.name][0]) / seconds[one.name][1])))
            for one, (rate, _) in plan.items()
        }

    def _rows(self, plan: Plan) -> list[dict[str, Any]]:
        results = {
            one: [_result(run) for run in self._runs(one, *chosen)] for one, chosen in plan.items()
        }
        accuracies = {
            one.name: np.array([result["accuracy"] for result in found])
            for one, found in results.items()
        }
        rows = []
        for one, (rate, epochs) in plan.items():
            mean = verdicts.interval(accuracies[one.name])
            is_reference = one.name == self._settings.reference
            against = verdicts.interval(accuracies[one.name] - accuracies[self._settings.reference])
            once, each = self._seconds(one, rate, epochs)
            means = {name: [result[key] for result in results[one]] for name, key in _MEANS.items()}
            rows.append(
                {
                    "method": one.name,
                    "rate": rate,
                    "rate_at_edge": len(self._rates) > 1
                    and rate in (min(self._rates), max(self._rates)),
                    "epochs": epochs,
                    "accuracy": str(mean),
                    "accuracies": accuracies[one.name].tolist(),
                    "mean": mean.mean,
                    "half_width": mean.half_width,
                    "difference": against.mean,
                    "difference_half_width": against.half_width,
                    "verdict": "(reference)" if is_reference else verdicts.verdict(against),
                    "seconds": once + epochs * each,
                    **{
                        name: None if None in values else float(np.mean(values))
                        for name, values in means.items()
                    },
                }
            )
        return rows

    def _seconds(self, one: Contender, rate: float, epochs: int) -> tuple[float, float]:
        """Of a training at reference speed: once, for tracing, and for each epoch."""
        found = []
        for run in self._runs(one, rate, epochs):
            steps, seconds, overheads = (
                np.array([epoch[key] for epoch in run.history])
                for key in ("steps", "seconds", "overhead_seconds")
            )
            step = _result(run)["achieved_ratio"] * self.full_step_seconds
            # what was measured in that training, in seconds at reference speed
            scale = step * steps.sum() / (seconds - overheads).sum()
            later = overheads[1:].mean() if len(overheads) > 1 else overheads[0]
            once = scale * (overheads[0] - later)
            found.append((once, step * steps.mean() + scale * later))
        once, each = np.mean(found, axis=0)
        return float(once), float(each)

    def _best_rate(self, one: Contender, epochs: int) -> float:
        """The rate with the best accuracy on the validation parts, in the mean over the seeds.

        One part of a hundred images tells rates apart by chance, and often gives two the same
        accuracy: each seed has its own part, and of equal rates the smaller loss decides. A rate at
        which a training fails is out.
        """
        reached = {}
        for rate in self._rates:
            try:
                found = self._runs(one, rate, epochs)
            except trials.TrainingFailed as error:
                print(f"{one.name} at {rate:g} does not train: {error}", flush=True)
                continue
            right = [_result(run)["validation_accuracy"] for run in found]
            losses = [run.history[-1]["val_loss"] for run in found]  # None: not a number
            loss = math.inf if None in losses else float(np.mean(losses))
            reached[rate] = (float(np.mean(right)), -loss)
        if not reached:
            raise trials.TrainingFailed(f"{one.name} trains at none of {self._settings.rates}.")
        return max(reached, key=lambda rate: reached[rate])

    def _runs(self, one: Contender, rate: float, epochs: int) -> list[runs.Run]:
        """The trainings of a method with all seeds."""
        return [self._run(one, rate, epochs, seed) for seed in range(self._settings.seeds)]

    def _run(self, one: Contender, rate: float, epochs: int, seed: int) -> runs.Run:
        path = self._settings.out / one.name / f"{epochs}_epochs_rate_{rate:g}" / f"seed_{seed}"
        if path not in self._done:
            head = self._heads[seed]
            options = {
                **self._shared(seed),
                "method": one.method,
                "rho": one.rho,
                "profile": self._profile,
                "weights": self._settings.weights if head is None else head.path / "weights.h5",
                "learning_rate": rate,
                "epochs": epochs,
            }
            self._done[path] = trials.run(path, options, self._launch)
        return self._done[path]

    def _head(self, seed: int) -> runs.Run | None:
        """The training of the new head alone that all methods start from."""
        settings = self._settings
        if not settings.warm_head:
            return None
        options = {
            **self._shared(seed),
            "method": "traditional_tl",
            "profile": None,
            "optimizer": "adam",
            "schedule": "constant",
            "warm_up": None,
            "learning_rate": settings.warm_head_rate,
            "epochs": settings.warm_head,
        }
        return trials.run(settings.out / "heads" / f"seed_{seed}", options, self._launch)

    def _shared(self, seed: int) -> dict[str, Any]:
        """Options of every training."""
        names = {field.name for field in dataclasses.fields(Adaptation)}
        given = {name: getattr(self._settings, name) for name in names}
        return {**given, "warm_head": 0, "warm_head_rate": None, "out": None, "seed": seed}


def _result(run: runs.Run) -> dict[str, Any]:
    """Of a finished run."""
    return run.result or {}
