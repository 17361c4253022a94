"""Compare random trainings with the reference until the time is over.

    python tests/fuzzing/run.py --seconds 60 --seed 0 [--only kept] [--out failures.txt]

Each failure is made as simple as it gets, and printed as a program that shows it alone. The cases
run in a child process, a new one now and then: TensorFlow's memory grows.

| feature | what it looks for |
|---|---|
| executions | plans that change where the last execution of an epoch has fewer steps |
| kept, elastic, weights, nan | kept activations of weights that have changed since |
| elastic | batches that are drawn ahead and then trained in another order |
| head, head_alone, no_bias | a head that is not the ridge regression that it is said to be |
| head with views | rows that the head was not solved on |
| ema, replaced, resume | averages of tensors that were not stepped, or that begin elsewhere |
| counts, saving | step counts of tensors, lost or wrong |
| broken, again, rate | what one `fit` leaves to the next |
| scaled, mixed | steps that are left out for their gradients are infinite |
| accumulate, keep, eager, weighted, evaluating, threads | ways that must not differ |
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from elastic_tf.commands import commandline  # before TensorFlow: it quiets its start-up

# isort: split
from fuzzing.case import Case, check
from fuzzing.draw import FEATURES, draw, is_supported, smaller

from elastic_tf.commands.commandline import option

CASES = 60  # of a process
HANG = 600.0  # seconds


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the comparisons."""

    seconds: float = option(60.0, help="to go on for")
    seed: int = option(0, help="of the first case; the next ones follow")
    only: str = option("", help="a feature that every case has", choices=["", *FEATURES])
    shrink: float = option(60.0, help="seconds to make a failure simpler")
    out: Path = option(Path(), help="file for the programs; none by default")


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one case: "passed", "refused" or "failed"."""

    seed: int
    outcome: str
    error: str = ""
    kind: str = ""
    script: str = ""


def tried(seed: int, only: str, seconds: float) -> Result:
    """Draw a case and check it; where it fails, make it simpler for some seconds."""
    case = draw(seed, only or None)
    error = error_of(case)
    if error is None:
        return Result(seed, "passed")
    if is_refusal(error):
        return Result(seed, "refused", said(error), script=case.script())
    case, error = shrunk(case, error, time.monotonic() + seconds)
    return Result(seed, "failed", said(error), kind(error), case.script())


def error_of(case: Case) -> BaseException | None:
    try:
        check(case)
    except Exception as error:
        return error
    return None


def is_refusal(error: BaseException) -> bool:
    """Whether the library says that it does not do this."""
    return type(error) in (ValueError, TypeError) and "Received:" in str(error)


def said(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[-1][:300]}"


def kind(error: BaseException) -> str:
    """The same for failures of one kind."""
    return re.sub(r"[-\d.e+]*\d|story.*weight|, .*:", "", said(error))[:60]


def shrunk(case: Case, error: BaseException, until: float) -> tuple[Case, BaseException]:
    """A simpler case that fails likewise."""
    while True:
        for simpler in smaller(case):
            if time.monotonic() > until:
                return case, error
            if is_supported(simpler):
                found = error_of(simpler)
                if found is not None and type(found) is type(error) and not is_refusal(found):
                    case, error = simpler, found
                    break
        else:
            return case, error


def results(settings: Settings) -> Iterator[Result]:
    """Of one case after another, each in a child process."""
    until = time.monotonic() + settings.seconds
    context, seed = multiprocessing.get_context("spawn"), settings.seed
    while time.monotonic() < until:
        pool = context.Pool(1)
        try:
            for _ in range(CASES):
                given = (seed, settings.only, settings.shrink)
                seed += 1
                yield pool.apply_async(tried, given).get(HANG)
                if time.monotonic() >= until:
                    return
        except multiprocessing.TimeoutError:
            script = draw(seed - 1, settings.only or None).script()
            yield Result(seed - 1, "failed", "it hangs, or the process died", "hang", script)
        finally:
            pool.terminate()


def features_of(script: str) -> str:
    """Names of the fields that a script gives, and what its callbacks do."""
    return " ".join(sorted({*re.findall(r"^    (\w+)=", script, re.M)} - {"seed"}))


def main(arguments: list[str] | None = None) -> None:
    """Print what failed, and end with 1 where something did."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    counts = dict.fromkeys(("passed", "refused", "failed"), 0)
    distinct: dict[tuple[str, str], str] = {}
    started = time.monotonic()
    for result in results(settings):
        counts[result.outcome] += 1
        key = (result.kind or result.error, features_of(result.script))
        if result.outcome == "passed" or key in distinct:
            continue
        when = f"seed {result.seed}, after {time.monotonic() - started:.0f} s"
        text = f"# {when}, {result.outcome}: {result.error}\n{result.script}\n"
        distinct[key] = text
        print(text, flush=True)
        if settings.out.name:
            settings.out.write_text("\n".join(distinct.values()))
    print(f"{sum(counts.values())} cases, {counts['refused']} refused, {counts['failed']} failures")
    raise SystemExit(bool(counts["failed"]))


if __name__ == "__main__":
    commandline.run(main)
