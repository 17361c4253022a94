"""The command `report`."""

from __future__ import annotations

import base64
import dataclasses
import html
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_tf.app import runs
from elastic_tf.app.commands import trained
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import format_table, write_text
from elastic_tf.plan import Plan
from elastic_tf.timing.profile import TimingProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width"><style>'
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "img{max-width:100%}pre{background:#eee;padding:.8rem;overflow-x:auto}</style>"
)
_SECONDS = ("part", "seconds:.1f", "what")
_PARTS = {
    "start": "imports, images, the network",
    "foretold": "a forward pass, from which step times are foretold",
    "chosen": "what to train",
    "kept": "what lies before it, computed once for each image",
    "head": "solved on the features",
    "first step": "with its trace",
    "head again": "solved on what was trained",
}
_BEFORE = ("start", "foretold", "chosen", "kept", "head")  # the first epoch has the last three


@dataclasses.dataclass(frozen=True)
class Report:
    """On which training."""

    run: Path = option(help=trained.RUN)
    out: Path | None = option(None, help="the page; report.html in the run's directory if left out")


def report(arguments: Sequence[str] | None = None) -> Path:
    """Write a page on a finished training: accuracy, seconds, what was trained, mistakes, its use.

    Example::

        python -m elastic_tf report --run runs/birds

    One HTML file with its pictures in it, to be opened in a browser or sent.
    """
    settings = parse(Report, report.__doc__, arguments)
    run, given, class_names = found = trained.load(settings.run)
    judged, result = trained.judged(found), run.result
    title = html.escape(f"{given.model} on {given.data}")
    parts = [f"<h1>{title}</h1>", _tag("p", str(judged))]
    for name, value in (("The head alone", "head_accuracy"), ("Now", "validation_accuracy")):
        accuracy = result.get(value, run.history[0].get(value) if run.history else None)
        if accuracy is not None and given.validation:
            parts.append(_tag("p", f"{name}, on validation images: {accuracy:.1%}"))
    if drawn := pictures(run):
        parts.append(_tag("h2", "Accuracy over seconds, and what was trained"))
        parts += [_picture(name, figure) for name, figure in drawn.items()]
    table = format_table(_seconds(run), _SECONDS)
    parts += [_tag("h2", "Where the seconds went"), _tag("pre", table)]
    parts += [_tag("h2", "Mistakes"), _tag("pre", "\n".join(judged.confusions(10)) or "none")]
    parts += [_picture(name, figure) for name, figure in judged.pictures().items()]
    folder = shlex.quote(str(settings.run))
    uses = [f"elastic-tf predict --run {folder} IMAGE_OR_FOLDER"]
    uses += [f"elastic-tf export --run {folder} --to mine{end}" for end in (".keras", ".tflite")]
    parts += [_tag("h2", "How to use it"), _tag("pre", "\n".join(uses))]
    told = {**run.config["versions"], **run.config["settings"]}
    if result.get("epochs") not in (None, given.epochs):
        told["epochs"] = f"{result['epochs']} of {given.epochs}"
    lines = [f"{name}: {value}" for name, value in told.items() if value is not None]
    parts += [_tag("h2", "How it was made"), _tag("pre", "\n".join(lines))]
    out = settings.out or settings.run / "report.html"
    body = "\n".join(parts)
    write_text(out, f"{_HEAD}<title>{title}</title>\n{body}\n</html>\n")
    print(f"Written to {out}")
    return out


def pictures(run: runs.Run) -> dict[str, Figure]:
    """Accuracy over seconds, and where a run leaves tensors out, which were trained in which epoch.

    None of a run that had time for the head alone and no validation images.
    """
    from elastic_tf import plots

    if not (points := course(run)):
        return {}
    settings, plans = run.config["settings"], runs.trained_plans(run.history)
    curve = [seconds for seconds, _ in points], [100 * accuracy for _, accuracy in points]
    part = "validation" if settings.get("validation") else "test"
    x, y = "training time, head included (s)", f"{part} accuracy (%)"
    drawn = {"accuracy over seconds": plots.lines({settings["method"]: curve}, x=x, y=y)}
    if any(plan != Plan.full(len(plan)) for plan in plans):
        file = run.path / "profile.json"
        tensors = TimingProfile.load(file).tensors if file.is_file() else ()
        names = [spec.name for spec in tensors]
        drawn["what was trained"] = plots.selection_map(plans, names=names)
    return drawn


def course(run: runs.Run) -> list[tuple[float, float]]:
    """Seconds since the training began and accuracy, of the head and after each epoch."""
    result, first = run.result, run.history[0] if run.history else {}
    if parts := result.get("seconds"):  # a training in so many seconds
        before = [parts.get(name, 0.0) for name in _BEFORE]
        passed, points = sum(before[:2]), [(sum(before), result["head_accuracy"])]
    else:
        passed = first["head_seconds"]
        points = [(passed, first["head_accuracy"])]
    for epoch in run.history:
        passed += epoch["seconds"]
        points.append((passed, epoch.get("val_accuracy")))
    # of what is kept, the head solved again
    passed = result["training_seconds"] + result.get("head_seconds", 0.0)
    points.append((passed, result["validation_accuracy"]))
    return [(float(x), float(y)) for x, y in points if y is not None]


def _seconds(run: runs.Run) -> list[dict[str, Any]]:
    """The parts of a training and what they took."""
    result = run.result
    parts = result.get("seconds") or {
        "head": result.get("head_seconds", 0.0),
        "training": result["training_seconds"],
        "validation": result["seconds_with_evaluation"] - result["training_seconds"],
    }
    return [{"part": k, "seconds": s, "what": _PARTS.get(k, "")} for k, s in parts.items()]


def _tag(name: str, text: str) -> str:
    return f"<{name}>{html.escape(text)}</{name}>"


def _picture(name: str, figure: Figure) -> str:
    from elastic_tf import plots

    data = base64.b64encode(plots.png(figure)).decode()
    return f'<img alt="{name}" src="data:image/png;base64,{data}">'
