r"""Compare methods: at equal epochs and at equal seconds, each at the learning rate that suits it.

Example::

    python -m elastic_tf compare --data birds --model mobilenet --alpha 0.75 \
        --weights mobilenet.h5 --input-size 128 \
        --methods full,traditional_tl,random@0.5,elastic@0.5 \
        --reference elastic@0.5 --out runs/birds

Every training is a run of the command `train` in a directory of its own: an interrupted comparison
goes on where it stopped. All methods start from the same head, solved in closed form. The learning
rate of a method is the one of `--rates` with the best accuracy on the validation parts in the mean
over all seeds, of equal ones the one with the smaller loss there; all methods train at the same
rates with the same seeds. The accuracies in the tables are those on the test images, which are
looked at once, at the end of each training.

Seconds are those that passed, evaluation not counted: let nothing else run beside. At equal seconds
each method trains, on a schedule of its own, as many epochs as fit into the seconds of the
reference, where 3 % more counts as equal, or into those of `--budget`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elastic_tf import __version__
from elastic_tf.app import runs
from elastic_tf.app.commands import train
from elastic_tf.app.commands.commandline import option, parse, words_of
from elastic_tf.app.commands.options import Adaptation
from elastic_tf.files import directory, format_table, now, to_json, write_json
from elastic_tf.timing import describe_device

COLUMNS = (
    *("method", "rate:.0e", "epochs:d", "accuracy::test accuracy, %"),
    *("seconds:.0f:s", "verdict::against the reference"),
)


# Seconds above those of the reference that count as equal: what is measured varies as much.
_EQUAL = 1.03
_CONFIDENCE = 0.95
_LOG_LINES = 12  # of a training that failed, in the message

# Trains with these arguments, its output in that file.
Launch = Callable[[Sequence[str], Path], None]


@dataclasses.dataclass(frozen=True)
class Settings(Adaptation):
    """The comparison."""

    methods: str = option(
        "full,traditional_tl,bn_bias,random@0.5,elastic@0.5",
        help="separated by commas; @rho for those that keep to a share of the step time",
    )
    reference: str = option("elastic@0.5", help="the method that the others are compared with")
    rates: str = option("1e-5,3e-5,1e-4,3e-4", help="learning rates to choose from")
    seeds: int = option(3, help="how many trainings of each method, with seeds from 0")
    epochs: int = option(6, help="of each training at equal epochs")
    budget: str = option(
        "", help="the equal seconds, as a share of a method's: full:0.5; else the reference's"
    )


def main(arguments: Sequence[str] | None = None, launch: Any = None) -> dict[str, Any]:
    """Train what is not there yet, print the tables, write the JSON.

    `launch` trains with the words of `train`, its output in a file; by default in a child process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    settings = parse(Settings, __doc__ or "", words)
    from elastic_tf import plots

    competition = Contest(settings, launch or launched)
    tables = competition.tables()
    allowed = competition.allowed_seconds
    result: dict[str, Any] = to_json(
        {
            "settings": settings,
            "command": shlex.join(["python", "-m", "elastic_tf", "compare", *words]),
            "created": now(),
            "version": __version__,
            "device": describe_device(),
            "allowed_seconds": allowed,
            "tables": tables,
        }
    )
    for name, rows in tables.items():
        print(f"\n{settings.data}, {name.replace('_', ' ')}, {settings.seeds} seeds")
        print(format_table(rows, COLUMNS))
        if name == "equal_seconds":
            print(f"Equal are {allowed:.0f} s, as many epochs as fit into them, at least one.")
        edges = [row["method"] for row in rows if row["rate_at_edge"]]
        if edges:
            print(f"The best rate is the first or the last that was tried: {', '.join(edges)}.")
    plots.save(plots.accuracy_at_budgets(tables), settings.out / "comparison.png")
    write_json(settings.out / "comparison.json", result)
    print(f"\nWritten to {settings.out / 'comparison.json'}, with a picture beside it")
    return result


class TrainingFailed(RuntimeError):
    """A training that ended with an error."""


class Plan(NamedTuple):
    """The trainings of one method, one for each seed."""

    name: str  # "elastic@0.5"
    rate: float
    epochs: int

    @property
    def label(self) -> str:
        """The name without the file that the method is from."""
        return self.name.rpartition(":")[2]


class Contest:
    """Runs what a comparison needs, each training once; refuses what cannot be compared.

    `allowed_seconds` are those of all at equal seconds, known with the tables.
    """

    def __init__(self, settings: Any, launch: Launch) -> None:
        from elastic_tf.methods import baselines

        self._settings, self._launch = settings, launch
        self._names = list(dict.fromkeys(part.strip() for part in settings.methods.split(",")))
        for name in self._names:
            method, _, rho = name.partition("@")
            takes_rho = baselines.get(method).needs_profile
            if bool(rho) != takes_rho:
                rule = f"takes a rho, as in {method}@0.5" if takes_rho else "takes no rho"
                raise ValueError(f"The method '{method}' {rule}. Received: {name!r}.")
        self._rates = [float(part) for part in settings.rates.split(",")]
        budget, _, share = (settings.budget or f"{settings.reference}:{_EQUAL}").rpartition(":")
        self._budget, self._share = budget, float(share)
        for role, name in (("reference", settings.reference), ("budget", budget)):
            if name not in self._names:
                known = ", ".join(self._names)
                raise ValueError(
                    f"`{role}` must name one of the methods {known}. Received: {name!r}."
                )
        if not 0 < settings.validation < 1:
            raise ValueError(
                "Rates are chosen on a validation part: `validation` must be in (0, 1). Received: "
                f"{settings.validation}."
            )
        self.allowed_seconds = 0.0
        self._done: dict[tuple[Plan, int], runs.Run] = {}
        self._profile = settings.profile  # or that of the first training that measures one

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """A row for each method, at equal epochs and at equal seconds."""
        epochs = self._settings.epochs
        plans = [Plan(name, self._best_rate(name, epochs), epochs) for name in self._names]
        seconds = {plan.name: self._seconds(plan) for plan in plans}
        once, each = seconds[self._budget]
        self.allowed_seconds = self._share * (once + epochs * each)
        timed = [
            plan._replace(epochs=max(1, int((self.allowed_seconds - once) / each)))
            for plan, (once, each) in zip(plans, seconds.values())
        ]
        found = {"equal_epochs": plans, "equal_seconds": timed}
        return {name: [self._row(plan, plans) for plan in plans] for name, plans in found.items()}

    def _row(self, plan: Plan, plans: list[Plan]) -> dict[str, Any]:
        """How one method compares with the reference."""
        results = [run.result for run in self._runs(plan)]
        (reference,) = (one for one in plans if one.name == self._settings.reference)
        accuracies = np.array([result["accuracy"] for result in results])
        theirs = np.array([run.result["accuracy"] for run in self._runs(reference)])
        (mean, half), (difference, off) = interval(accuracies), interval(accuracies - theirs)
        ends = (min(self._rates), max(self._rates))
        return {
            "method": plan.label,
            "rate": plan.rate,
            "rate_at_edge": len(self._rates) > 1 and plan.rate in ends,
            "epochs": plan.epochs,
            "accuracy": f"{100 * mean:.1f}" + ("" if half is None else f" ± {100 * half:.1f}"),
            "accuracies": accuracies.tolist(),
            "mean": mean,
            "half_width": half,
            "difference": difference,
            "difference_half_width": off,
            "verdict": "(reference)" if plan is reference else verdict(difference, off),
            "seconds": float(np.mean([result["training_seconds"] for result in results])),
        }

    def _seconds(self, plan: Plan) -> tuple[float, float]:
        """Of a training: once, for what the first epoch takes beyond the others, and for each."""
        first, later = np.mean(
            [
                (seconds[0], np.mean(seconds[1:] or seconds))
                for seconds in ([one["seconds"] for one in run.history] for run in self._runs(plan))
            ],
            axis=0,
        )
        return float(first - later), float(later)

    def _best_rate(self, name: str, epochs: int) -> float:
        """The rate that does best on the validation parts of all seeds; one that fails is out."""
        reached = {}
        for rate in self._rates:
            try:
                found = self._runs(Plan(name, rate, epochs))
            except TrainingFailed as error:
                print(f"{name} at {rate:g} does not train: {error}", flush=True)
                continue
            right = [run.result["validation_accuracy"] for run in found]
            losses = [run.history[-1]["val_loss"] for run in found]  # None: not a number
            loss = math.inf if None in losses else float(np.mean(losses))
            reached[rate] = (float(np.mean(right)), -loss)
        if not reached:
            raise TrainingFailed(f"{name} trains at none of {self._settings.rates}.")
        return max(reached, key=lambda rate: reached[rate])

    def _runs(self, plan: Plan) -> list[runs.Run]:
        """The trainings of a method with all seeds."""
        settings, (method, _, rho) = self._settings, plan.name.partition("@")
        shared = {one.name: getattr(settings, one.name) for one in dataclasses.fields(Adaptation)}
        folder = settings.out / plan.label / f"{plan.epochs}_epochs_rate_{plan.rate:g}"
        for seed in range(settings.seeds):
            if (plan, seed) not in self._done:
                own = {"method": method, "rho": float(rho) if rho else None, "seed": seed}
                own |= {"learning_rate": plan.rate, "epochs": plan.epochs, "profile": self._profile}
                run = trained(folder / f"seed_{seed}", {**shared, **own}, self._launch)
                self._done[plan, seed] = run
                if self._profile is None and rho:
                    self._profile = run.path / "profile.json"
        return [self._done[plan, seed] for seed in range(settings.seeds)]


def trained(path: Path, options: Mapping[str, Any], launch: Launch) -> runs.Run:
    """The finished run in `path` with these options, trained now unless it was before."""
    words = words_of({**options, "out": path, "quiet": True})
    if not (path / "result.json").is_file():
        print(f"Training {path}", flush=True)
        launch(words, path.parent / f"{path.name}.log")
    return runs.create(path, parse(train.Settings, "", words))


def launched(arguments: Sequence[str], log: Path) -> None:
    """Train in a child process, which keeps what is measured apart: memory above all.

    A `TrainingFailed` ends with what it printed last.
    """
    directory(log.parent)
    words = [sys.executable, "-m", "elastic_tf", "train", *arguments]
    with open(log, "w", encoding="utf-8") as file:
        code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        raise TrainingFailed(
            f"A training failed with exit code {code}: {' '.join(words)}\n" + "\n".join(last)
        )


def interval(values: Any) -> tuple[float, float | None]:
    """Mean and half the width of Student's 95 % interval; None where one value has no spread."""
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None
    return mean, float(stats.sem(values) * stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1))


def verdict(mean: float, half_width: float | None) -> str:
    """What a difference of accuracies shows, in points: "better by 0.4 to 2.1 points" ..."""
    if half_width is None:
        return "one seed: nothing shown"
    low, high = 100 * (mean - half_width), 100 * (mean + half_width)
    if low > 0:
        return f"better by {low:.1f} to {high:.1f} points"
    if high < 0:
        return f"worse by {-high:.1f} to {-low:.1f} points"
    return f"no difference shown ({low:+.1f} to {high:+.1f} points)"
