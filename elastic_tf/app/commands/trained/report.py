"""Write a page on a finished training: accuracy, seconds, what was trained, mistakes, its use.

Example::

    python -m elastic_tf report --run runs/birds

One HTML file with its pictures in it, to be opened in a browser or sent.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_tf.app import runs
from elastic_tf.app.commands import plot
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.trained import evaluate, network
from elastic_tf.files import format_table, write_text

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


@dataclasses.dataclass(frozen=True)
class Settings:
    """On which training."""

    run: Path = option(help=network.RUN)
    out: Path | None = option(None, help="the page; report.html in the run's directory if left out")


def main(arguments: Sequence[str] | None = None) -> Path:
    """Write the page; returns its path."""
    settings = parse(Settings, __doc__ or "", arguments)
    trained = network.load(settings.run)
    found = evaluate.judged(trained)
    run, given, result = trained.run, trained.settings, trained.run.result
    title = html.escape(f"{given.model} on {given.data}")
    parts = [f"<h1>{title}</h1>", _tag("p", str(found))]
    for name, value in (("The head alone", "head_accuracy"), ("Now", "validation_accuracy")):
        accuracy = result.get(value, run.history[0].get(value) if run.history else None)
        if accuracy is not None and given.validation:
            parts.append(_tag("p", f"{name}, on validation images: {accuracy:.1%}"))
    if plot.course(run):
        parts.append(_tag("h2", "Accuracy over seconds, and what was trained"))
        parts += map(_picture, plot.of_runs([run], Path("accuracy.png")).values())
    table = format_table(_seconds(run), _SECONDS)
    parts += [_tag("h2", "Where the seconds went"), _tag("pre", table)]
    parts += [_tag("h2", "Mistakes"), _tag("pre", "\n".join(found.confusions(10)) or "none")]
    parts += map(_picture, found.pictures().values())
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


def _picture(figure: Figure) -> str:
    from elastic_tf import plots

    title = figure.axes[0].get_title(loc="left").strip() or "accuracy over seconds"
    data = base64.b64encode(plots.png(figure)).decode()
    return f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'
