"""Modes of training, and the papers' own methods, at equal seconds: trials as in `choice.py`.

With `--memory` at equal memory instead: every method gets all epochs.

The reference trains some epochs; every other method gets as many as fit into its seconds, by two
timed trainings of three epochs and of twelve, before all else: nothing may run beside these. The
rate of each method has the least loss on validation images, mean of the first seeds; halves and
doubles are tried until the best is at no end. Then the test images are looked at.
Each trial is written at once and none is run twice: start it again to go on. Searches that are made
before a training (`sparse_update`) and the timing profile are not in the seconds.

Example::

    python experiments/modes.py --data birds --weights mobilenet.h5
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import choice  # before TensorFlow: it quiets its start-up
import numpy as np

from elastic_tf.app.commands.commandline import option, parse, run
from elastic_tf.files.table import format_table

METHODS = (
    *("elastic@0.5", "offline_optimal@0.5", "elastic_modes@0.5", "gradient_filtering"),
    *("velocity", "random_neurons", "sparse_update", "tinytrain"),
)
_TIMED = (3, 12)  # epochs: in one alone nothing would be computed in advance


@dataclass(frozen=True)
class Settings:
    """What to compare, on which data."""

    data: str = option(help="folder or file, as for the command train")
    weights: str = option(help="of the network without its head")
    model: str = option("mobilenet", help="network of the zoo")
    alpha: float = option(0.75, help="width multiplier of the network")
    input_size: int = option(128, help="pixels of the images")
    methods: tuple[str, ...] = option(METHODS, help="the first one is the reference")
    epochs: int = option(10, help="of the reference")
    batch: int = option(16, help="images in a step")
    rates: tuple[float, ...] = option((1e-4, 2e-4, 4e-4), help="first rates to try")
    tried: int = option(2, help="seeds on which the rates are tried")
    seeds: int = option(3, help="trials of each method")
    untimed: bool = option(False, help="other programs run beside, once the epochs are known")
    memory: str = option("", help="most a step may take, as 96 MiB: as many epochs for all")
    out: Path = option(choice.RESULT.with_name("modes_trials.json"), help="file of all trials")


def main() -> None:
    """Run the trials that are not there yet; print a table for the validation and the test part."""
    settings = parse(Settings, __doc__ or "", None)
    names = [field.name for field in dataclasses.fields(choice.Settings)]
    shared = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    timed = choice.Trials(choice.Settings(**{**shared, "untimed": False}, part="validation"))
    usual = settings.rates[len(settings.rates) // 2]

    def seconds(method: str) -> tuple[float, float]:
        one, more = (
            timed.run(method, epochs, settings.batch, 0, usual)["seconds"] for epochs in _TIMED
        )
        each = max((more - one) / (_TIMED[1] - _TIMED[0]), 1e-3)
        return one - _TIMED[0] * each, each

    fits, chosen = dict.fromkeys(settings.methods, settings.epochs), []
    if not settings.memory:
        costs = {method: seconds(method) for method in settings.methods}
        once, each = costs[settings.methods[0]]
        allowed = once + settings.epochs * each
        fits = {  # a little above counts as equal
            method: max(1, round((allowed - once) / each - 0.3))
            for method, (once, each) in costs.items()
        }
        print(f"Epochs in {allowed:.0f} s: {fits}", flush=True)
    trials = choice.Trials(choice.Settings(**shared, part="validation"))

    def trial(method: str, epochs: int, seed: int, rate: float) -> dict[str, Any]:
        return trials.run(method, epochs, settings.batch, seed, rate)

    for method, epochs in fits.items():
        losses: dict[float, float] = {}
        wanted = set(settings.rates)
        while wanted:
            for rate in sorted(wanted):
                tried = [trial(method, epochs, seed, rate) for seed in range(settings.tried)]
                losses[rate] = float(np.mean([one["loss"] for one in tried]))
            best = min(losses, key=lambda rate: losses[rate])
            wanted = {best / 2.0, best * 2.0} - set(losses)  # the best is at no end of the grid
        chosen.append((method, epochs, best))
        print(f"{method}: {epochs} epochs, rate {best:g}", flush=True)
    trials = choice.Trials(choice.Settings(**shared, part="test"))
    for seed in range(settings.seeds):
        for method, epochs, rate in chosen:
            trial(method, epochs, seed, rate)
    told = {"data": Path(settings.data).stem, "model": settings.model, "part": "test"}
    told["memory"] = settings.memory
    rows = [
        row
        for row in choice.summary(trials.done, **told)
        if (row["method"], row["epochs"], row["rate"]) in chosen
    ]
    print(format_table(rows, choice.COLUMNS))


if __name__ == "__main__":
    run(main)
