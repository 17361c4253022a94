"""Whether what is installed is what was asked for, and whether TensorFlow starts and trains."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from elastic_tf.commands.checking.finding import BROKEN, NOTE, OK, Finding
from elastic_tf.commands.commandline import typed

_PACKAGE = "elastic_tf"
_START_UP = ("-m", "elastic_tf.commands.checking.start_up")
_SECONDS = 600  # for TensorFlow to start and to train a step, on a small board with a slow disk


def python() -> Finding:
    """Python's version against the one that the package asks for."""
    own = ".".join(map(str, sys.version_info[:3]))
    found = f"{own}, {sys.executable}"
    try:
        asked = metadata.metadata(_PACKAGE)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return Finding("Python", OK, found)
    if own in SpecifierSet(asked, prereleases=True):
        return Finding("Python", OK, found)
    mend = f"Make an environment with a Python {asked}: python3.11 -m venv .venv."
    return Finding("Python", BROKEN, found, mend)


def packages() -> list[Finding]:
    """Each package that is asked for, against the version that is installed."""
    try:
        asked = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        install = typed(["-m", "pip", "install", "."])
        mend = f"Versions were not checked. In the checkout, {install} installs what is needed."
        return [Finding(_PACKAGE, NOTE, "run from a folder, not installed", mend)]
    findings = [Finding(_PACKAGE, OK, metadata.version(_PACKAGE))]
    for requirement in map(Requirement, asked):
        # those of the extras have a marker that is false without them
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            findings.append(_package(requirement))
    return findings


def _package(requirement: Requirement) -> Finding:
    """One package."""
    name, asked = requirement.name, str(requirement.specifier)
    mend = typed(["-m", "pip", "install", f"{name}{asked}"])
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, BROKEN, "not installed", mend)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(name, OK, version)
    return Finding(name, BROKEN, f"{version}, asked for is {asked}", mend)


def tensorflow() -> tuple[list[Finding], dict[str, Any] | None]:
    """Start TensorFlow and train a step in a child process.

    Returns:
        Whether it trains, and whether its start-up is quiet; and what `describe_device` says there,
        None where it does not train.
    """
    command = [sys.executable, *_START_UP]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        mend = "Look at the load of the machine and at its disk, and try again."
        return [Finding("TensorFlow", BROKEN, f"no step in {_SECONDS} s", mend)], None
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        last = said[-1] if said else f"ended with code {done.returncode} without a word"
        mend = f"{' '.join(command)} shows all of it. pip install elastic_tf's packages anew."
        if done.returncode == -signal.SIGILL:
            last = "ended by an illegal instruction: it is built for another processor"
            mend = "Take a TensorFlow built for this processor; those of PyPI for x86 need AVX."
        return [Finding("TensorFlow", BROKEN, last, mend)], None
    device = json.loads(done.stdout.splitlines()[-1])
    trains = f"{device['tensorflow']} trains on {device['name']} ({device['kind']})"
    findings = [Finding("TensorFlow", OK, trains)]
    if not said:
        return [*findings, Finding("start-up", OK, "quiet")], device
    mend = "Unset TF_CPP_MIN_LOG_LEVEL and PYTHONWARNINGS where they are set; else it is harmless."
    return [*findings, Finding("start-up", NOTE, f"says: {said[0]}", mend)], device
