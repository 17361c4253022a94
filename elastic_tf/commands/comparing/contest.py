"""The trainings behind a comparison of methods, and the rows of its tables."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf.commands import commandline, names
from elastic_tf.commands.comparing import trials, verdicts
from elastic_tf.commands.comparing.contenders import Contender, Cost, Plan, Question
from elastic_tf.commands.training.history import share_beside_steps
from elastic_tf.commands.training.run_settings import taken_by
from elastic_tf.runs import run as runs


class Contest:
    """Runs what a comparison needs, each training once.

    Args:
        settings: of the command `compare`.
        question: what they ask for.
        launch: trains.

    Attributes:
        allowed_seconds: at equal seconds, at reference speed; not a number before they are known.
    """

    def __init__(self, settings: Any, question: Question, launch: trials.Launch) -> None:
        self._settings = settings
        self._launch = launch
        self._contenders, self._rates, self._budget = question
        self._done: dict[Path, runs.Run] = {}
        self.allowed_seconds = math.nan
        self._part = trials.Part("heads", settings.seeds)
        self._heads = [self._head(seed) for seed in range(settings.seeds)]
        self._profile = self._profiled()

    @property
    def full_step_seconds(self) -> float:
        """One full step, the median over all trainings."""
        return float(
            np.median([trials.result_of(run)["full_step_seconds"] for run in self._done.values()])
        )

    @property
    def head_seconds(self) -> list[float]:
        """Of the trainings of the head that all methods start from."""
        return [
            0.0 if head is None else trials.result_of(head)["training_seconds"]
            for head in self._heads
        ]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """A row for each method, at equal epochs and, unless it is left out, at equal seconds."""
        epochs, trained = self._settings.epochs, len(self._contenders) * self._settings.seeds
        self._part = trials.Part("equal epochs", trained * len(self._rates))
        plan = {one: (self._best_rate(one, epochs), epochs) for one in self._contenders}
        plans = {"equal_epochs": plan}
        self._rows(plan)  # all trainings: what a full step takes is known afterwards
        if self._settings.equal == "both":
            plans["equal_seconds"] = self._for_equal_seconds(plan)
            self._rows(plans["equal_seconds"])
        return {name: self._rows(one) for name, one in plans.items()}

    def _for_equal_seconds(self, plan: Plan) -> Plan:
        """Epochs for the seconds of the budget."""
        costs = {
            one.name: [self._cost(run) for run in self._runs(one, rate, epochs)]
            for one, (rate, epochs) in plan.items()
        }
        mean = {name: Cost(*np.mean(found, axis=0)) for name, found in costs.items()}
        name, share = self._budget
        allowed = self.allowed_seconds = share * mean[name].seconds(self._settings.epochs)
        again = self._settings.tune_again
        fits = {
            one: max(1, int((allowed - mean[one.name].once) / mean[one.name].each)) for one in plan
        }
        new = sum(epochs != self._settings.epochs for epochs in fits.values())
        tried = len(self._rates) if again else 1
        self._part = trials.Part("equal seconds", new * self._settings.seeds * tried)
        return {
            one: (self._best_rate(one, epochs) if again else plan[one][0], epochs)
            for one, epochs in fits.items()
        }

    def _rows(self, plan: Plan) -> list[dict[str, Any]]:
        results = {one: self._runs(one, rate, epochs) for one, (rate, epochs) in plan.items()}
        accuracies = {
            one.name: [trials.result_of(run)["accuracy"] for run in found]
            for one, found in results.items()
        }
        rows = []
        for one, found in results.items():
            rate, epochs = plan[one]
            mean = verdicts.interval(accuracies[one.name])
            is_reference = one.name == self._settings.reference
            against = verdicts.difference(
                accuracies[one.name], accuracies[self._settings.reference]
            )
            rows.append(
                {
                    "method": one.name,
                    "rate": rate,
                    "rate_at_edge": len(self._rates) > 1
                    and rate in (min(self._rates), max(self._rates)),
                    "epochs": epochs,
                    "accuracy": str(mean),
                    "accuracies": accuracies[one.name],
                    "mean": mean.mean,
                    "half_width": mean.half_width,
                    "difference": against.mean,
                    "difference_half_width": against.half_width,
                    "verdict": "(reference)" if is_reference else verdicts.verdict(against),
                    "seconds": float(np.mean([self._cost(run).seconds(epochs) for run in found])),
                    "raw_seconds": _mean(found, "training_seconds"),
                    "ratio": _mean(found, "achieved_ratio"),
                    # from the epochs: results of runs that were made before do not hold it
                    "share_beside_steps": float(
                        np.mean([share_beside_steps(run.history) for run in found])
                    ),
                    "flops_ratio": _mean(found, "flops_ratio"),
                    "peak_memory_bytes": _mean(found, "peak_memory_bytes"),
                    "activation_bytes": _mean(found, "activation_bytes"),
                }
            )
        return rows

    def _cost(self, run: runs.Run) -> Cost:
        """Seconds of a run at reference speed."""
        steps = [epoch["steps"] for epoch in run.history]
        overheads = [epoch["overhead_seconds"] for epoch in run.history]
        in_steps = sum(epoch["seconds"] for epoch in run.history) - sum(overheads)
        step = trials.result_of(run)["achieved_ratio"] * self.full_step_seconds
        # what was measured in that training, in seconds at reference speed
        scale = step * sum(steps) / in_steps
        later = float(np.mean(overheads[1:] or overheads))
        return Cost(scale * (overheads[0] - later), step * float(np.mean(steps)) + scale * later)

    def _runs(self, one: Contender, rate: float, epochs: int) -> list[runs.Run]:
        """The trainings of a method with all seeds."""
        return [self._run(one, rate, epochs, seed) for seed in range(self._settings.seeds)]

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
            right = [trials.result_of(run)["validation_accuracy"] for run in found]
            losses = [run.history[-1]["val_loss"] for run in found]  # None: not a number
            reached[rate] = (
                float(np.mean(right)),
                -math.inf if None in losses else -float(np.mean(losses)),
            )
        if not reached:
            raise trials.TrainingFailed(f"{one.name} trains at none of {self._settings.rates}.")
        return max(reached, key=lambda rate: reached[rate])

    def _run(self, one: Contender, rate: float, epochs: int, seed: int) -> runs.Run:
        head = self._heads[seed]
        taken = taken_by(one.method)
        options = {
            **self._shared(seed),
            "method": one.method,
            "rho": one.rho,
            **{
                name: getattr(self._settings, name)
                for name in ("interval", "probe_size")
                if name in taken
            },
            "profile": self._profile,
            "weights": self._settings.weights if head is None else head.path / "weights.h5",
            "optimizer": self._settings.optimizer,
            "learning_rate": rate,
            "warm_up": self._settings.warm_up or None,
            "epochs": epochs,
        }
        path = self._settings.out / one.name / f"{epochs}_epochs_rate_{rate:g}" / f"seed_{seed}"
        if path not in self._done:
            self._done[path] = self._part.run(trials.Trial(path, options), self._launch)
        return self._done[path]

    def _head(self, seed: int) -> runs.Run | None:
        """The training of the new head alone that all methods start from."""
        if not self._settings.warm_head:
            return None
        options = {
            **self._shared(seed),
            "method": "traditional_tl",
            "weights": self._settings.weights,
            "optimizer": "adam",
            "schedule": "constant",
            "learning_rate": self._settings.warm_head_rate,
            "epochs": self._settings.warm_head,
        }
        trial = trials.Trial(self._settings.out / "heads" / f"seed_{seed}", options)
        return self._part.run(trial, self._launch)

    def _shared(self, seed: int) -> dict[str, Any]:
        """Options of every training."""
        same = ("data", "model", "alpha", "input_size", "batch_size", "validation", "flip")
        given = {name: getattr(self._settings, name) for name in same}
        return {**given, "augment": self._settings.augment, "seed": seed}

    def _profiled(self) -> Path | None:
        """The timing profile for all trainings; they also run under its settings."""
        settings = self._settings
        needed = any(names.NEEDS_PROFILE[one.method] for one in self._contenders)
        # without a head trained before, the number of classes is not known here
        if settings.profile is not None or not needed or self._heads[0] is None:
            return settings.profile
        path = settings.out / "profile.json"
        if not path.is_file():
            shared = {
                name: getattr(settings, name)
                for name in ("model", "alpha", "input_size", "batch_size", "optimizer")
            }
            words = [f"--{name.replace('_', '-')}={value}" for name, value in shared.items()]
            words += [f"--classes={len(trials.result_of(self._heads[0])['class_names'])}"]
            words += [f"--out={path}", "--as-is"]
            print("Profiling this device ...", flush=True)
            subprocess.run(
                [sys.executable, *commandline.command("profile", words)],
                stdout=subprocess.DEVNULL,
                check=True,
            )
        return path


def _mean(found: Sequence[runs.Run], key: str) -> float | None:
    """Of a number in the results; None where one has none."""
    values = [trials.result_of(run)[key] for run in found]
    return None if None in values else float(np.mean(values))
