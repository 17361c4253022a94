"""Check the installation and the machine, and say what to mend.

Example::

    python -m elastic_tf doctor --out runs --profile mobilenet.json

"ok" needs nothing; "note" trains, but something could be better; "broken" cannot train. The exit
code is 1 if something is broken, else 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from elastic_tf.commands.checking import installation, machine, storage
from elastic_tf.commands.checking.finding import BROKEN, Finding
from elastic_tf.commands.commandline import option, parse, telling
from elastic_tf.files.table import format_table


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to check."""

    out: Path = option(Path("runs"), help="directory where runs will be written")
    profile: Optional[Path] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="timing profile to check; else one of this device is looked for in this folder"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, print, and end with exit code 1 where training is impossible."""
    settings = parse(Settings, __doc__ or "", arguments)
    with telling("Checking the installation, TensorFlow in a process of its own ..."):
        findings = examine(settings)
    print(report(findings))
    if any(finding.state == BROKEN for finding in findings):
        raise SystemExit(1)


def examine(settings: Settings) -> list[Finding]:
    """All findings; those that ask TensorFlow only where it starts."""
    load = machine.load()  # before the checks put a load on the machine themselves
    started, device = installation.tensorflow()
    findings = [installation.python(), *installation.packages(), *started, machine.cores()]
    if device is not None:
        findings.append(machine.onednn(device))
    findings += [load, machine.clock(), machine.memory(), machine.sensor()]
    findings += [storage.run_directory(settings.out), storage.disk(settings.out)]
    findings.append(storage.data_sets())
    if device is not None:
        findings.append(storage.profile(settings.profile, device))
    return findings


def report(findings: Sequence[Finding]) -> str:
    """A table, what to mend below it, and the verdict."""
    rows = [finding._asdict() for finding in findings]
    lines = [format_table(rows, ("check", "state", "found")), ""]
    lines += [f"{finding.check}: {finding.mend}" for finding in findings if finding.mend]
    broken = [finding.check for finding in findings if finding.state == BROKEN]
    lines.append(
        f"It cannot train before this is mended: {', '.join(broken)}."
        if broken
        else "Ready to train."
    )
    return "\n".join(lines)
