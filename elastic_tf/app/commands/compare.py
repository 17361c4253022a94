"""The command `compare`."""

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
from elastic_tf.app.commands.commandline import option, parse, words_of
from elastic_tf.app.commands.settings import Adaptation, Train
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
class Compare(Adaptation):
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


def compare(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> dict[str, Any]:
    r"""Compare methods at equal epochs and at equal seconds, each at its own best learning rate.

    Example::

        python -m elastic_tf compare --data birds --model mobilenet --alpha 0.75 \
            --weights mobilenet.h5 --input-size 128 \
            --methods full,traditional_tl,random@0.5,elastic@0.5 \
            --reference elastic@0.5 --out runs/birds

    Every training is a run of the command `train` in a directory of its own: an interrupted
    comparison goes on where it stopped. All methods start from the same head, solved in closed
    form. The learning rate of a method is the one of `--rates` with the best accuracy on the
    validation parts in the mean over all seeds, of equal ones the one with the smaller loss there;
    all methods train at the same rates with the same seeds. The accuracies in the tables are those
    on the test images, which are looked at once, at the end of each training.

    Seconds are those that passed, evaluation not counted: let nothing else run beside. At equal
    seconds each method trains, on a schedule of its own, as many epochs as fit into the seconds of
    the reference, where 3 % more counts as equal, or into those of `--budget`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    settings = parse(Compare, compare.__doc__, words)
    from elastic_tf import plots

    contest = Contest(settings, launch or launched)
    tables = contest.tables()
    allowed = contest.allowed_seconds
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


class Trial(NamedTuple):
    """The trainings of one method, one for each seed."""

    name: str  # "elastic@0.5", of a file "FILE.py:mine@0.5"
    rate: float
    epochs: int
    runs: list[runs.Run]

    def results(self, key: str) -> np.ndarray:
        """A number of each training."""
        return np.array([run.result[key] for run in self.runs])

    def seconds(self) -> tuple[float, float]:
        """Of a training: once, for what the first epoch takes beyond the others, and for each."""
        each = [[epoch["seconds"] for epoch in run.history] for run in self.runs]
        first, later = np.mean([(one[0], np.mean(one[1:] or one)) for one in each], axis=0)
        return float(first - later), float(later)

    def judged(self) -> tuple[float, float]:
        """Accuracy on the validation parts, in the mean, and there the loss, negative."""
        losses = [run.history[-1]["val_loss"] for run in self.runs]  # None: not a number
        loss = math.inf if None in losses else float(np.mean(losses))
        return float(np.mean(self.results("validation_accuracy"))), -loss


class Contest:
    """Runs what a comparison needs, each training once; refuses what cannot be compared.

    `allowed_seconds` are those of all at equal seconds, known with the tables.
    """

    def __init__(self, settings: Compare, launch: Launch) -> None:
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
        if not settings.validation:
            raise ValueError(
                "Rates are chosen on a validation part: `validation` must be in (0, 1). Received: "
                f"{settings.validation}."
            )
        self.allowed_seconds = 0.0
        self._trials: dict[tuple[str, float, int], Trial] = {}
        self._profile = settings.profile  # or that of the first training that measures one

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """A row for each method, at equal epochs and at equal seconds."""
        epochs = self._settings.epochs
        best = [self._best(name, epochs) for name in self._names]
        seconds = {trial.name: trial.seconds() for trial in best}
        once, each = seconds[self._budget]
        allowed = self.allowed_seconds = self._share * (once + epochs * each)
        timed = [
            self._trial(trial.name, trial.rate, max(1, int((allowed - once) / each)))
            for trial, (once, each) in zip(best, seconds.values())
        ]
        return {"equal_epochs": self._rows(best), "equal_seconds": self._rows(timed)}

    def _rows(self, trials: list[Trial]) -> list[dict[str, Any]]:
        """How each method compares with the reference."""
        (reference,) = (one for one in trials if one.name == self._settings.reference)
        ends, rows = (min(self._rates), max(self._rates)), []
        for trial in trials:
            accuracies = trial.results("accuracy")
            mean, half = interval(accuracies)
            difference, off = interval(accuracies - reference.results("accuracy"))
            rows.append(
                {
                    "method": _label(trial.name),
                    "rate": trial.rate,
                    "rate_at_edge": len(self._rates) > 1 and trial.rate in ends,
                    "epochs": trial.epochs,
                    "accuracy": f"{100 * mean:.1f}"
                    + ("" if half is None else f" ± {100 * half:.1f}"),
                    "accuracies": accuracies.tolist(),
                    "mean": mean,
                    "half_width": half,
                    "difference": difference,
                    "difference_half_width": off,
                    "verdict": "(reference)" if trial is reference else verdict(difference, off),
                    "seconds": float(np.mean(trial.results("training_seconds"))),
                }
            )
        return rows

    def _best(self, name: str, epochs: int) -> Trial:
        """With the rate that does best on the validation parts of all seeds; one may fail."""
        found = []
        for rate in self._rates:
            try:
                found.append(self._trial(name, rate, epochs))
            except TrainingFailed as error:
                print(f"{name} at {rate:g} does not train: {error}", flush=True)
        if not found:
            raise TrainingFailed(f"{name} trains at none of {self._settings.rates}.")
        return max(found, key=Trial.judged)

    def _trial(self, name: str, rate: float, epochs: int) -> Trial:
        """The trainings of a method with all seeds."""
        settings, (method, _, rho) = self._settings, name.partition("@")
        if (name, rate, epochs) in self._trials:
            return self._trials[name, rate, epochs]
        shared = {one.name: getattr(settings, one.name) for one in dataclasses.fields(Adaptation)}
        folder = settings.out / _label(name) / f"{epochs}_epochs_rate_{rate:g}"
        found = []
        for seed in range(settings.seeds):
            own: dict[str, Any] = {
                "method": method,
                "rho": float(rho) if rho else None,
                "seed": seed,
            }
            own |= {"learning_rate": rate, "epochs": epochs, "profile": self._profile}
            found.append(trained(folder / f"seed_{seed}", {**shared, **own}, self._launch))
            if self._profile is None and rho:
                self._profile = found[-1].path / "profile.json"
        self._trials[name, rate, epochs] = Trial(name, rate, epochs, found)
        return self._trials[name, rate, epochs]


def _label(name: str) -> str:
    """The name of a method without the file that it is from."""
    return name.rpartition(":")[2]


def trained(path: Path, options: Mapping[str, Any], launch: Launch) -> runs.Run:
    """The finished run in `path` with these options, trained now unless it was before."""
    words = words_of({**options, "out": path, "quiet": True})
    if not (path / "result.json").is_file():
        print(f"Training {path}", flush=True)
        launch(words, path.parent / f"{path.name}.log")
    return runs.create(path, parse(Train, None, words))


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
