"""The paper's figures and tables: the runs behind them, and the drawings.

    python experiments/paper.py --list                       what there is
    python experiments/paper.py --figure 15a --scale small   one figure
    python experiments/paper.py --figure 15 --scale paper    all its panels
    python experiments/paper.py --table 2                    a table
    python experiments/paper.py --scale paper                everything

Runs stand in OUT/SCALE/DEVICE, drawings in pictures/ there. What is done is passed over, so that
all can be stopped and started again, and figures share runs. Figures of a second device (16, 17c,
19c, 19d, 22b) are 15, 17a, 19a, 19b and 22a: run these there, with another --device.

At scale "paper" everything is as in its Sec. 8: 12 epochs, batches of 4 images of 224 pixels, SGDW
at 1e-4 on a cosine, Adam for ViT. At scale "small" each figure takes minutes, on
handwritten digits.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # noqa: F401 (before TensorFlow: it quiets its start-up)

# isort: split
import paper_specs
from figure_forms import FORMS
from paper_specs import FIGURES, TABLES, VIT, Picture, Scale, Training

from elastic_tf import plots
from elastic_tf.app.commands import commandline, compare
from elastic_tf.app.commands.commandline import option, parse, words_of
from elastic_tf.app.runs import Run
from elastic_tf.files import format_table, write_text
from elastic_tf.methods import baselines


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to run and draw."""

    list: bool = option(False, help="list figures and tables, and run nothing")
    figure: str = option("", help="15a, or 15 for all its panels; everything if left out")
    table: str = option("", help="2")
    scale: str = option("small", help="size of it all", choices=("small", "paper"))
    out: Path = option(Path("runs/paper"), help="directory for all runs")
    device: str = option("here", help="name of this device, for its directory")
    vit_weights: Path | None = option(
        None, help="file of weights for ViT-B/16, for which Keras has none"
    )


def main(
    arguments: Sequence[str] | None = None, launch: compare.Launch = compare.launched
) -> list[Path]:
    """Run what is not there yet, and draw; returns the drawings."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.list:
        print(listing())
        return []
    chosen = paper_specs.pictures(settings.figure, settings.table)
    is_small = settings.scale == "small"
    scale = paper_specs.small() if is_small else paper_specs.paper(settings.vit_weights)
    root = settings.out / settings.scale / settings.device
    plan = list(dict.fromkeys(t for one in chosen.values() for t in scale.trainings(one)))
    if VIT in {one.model for one in plan} and scale.models[VIT].get("weights") is None:
        raise ValueError(
            "Keras has no pre-trained weights for ViT-B/16. Received: no --vit-weights. Give a "
            "file of weights, or take single figures: all others need none."
        )
    done, failed = {}, []
    for number, training in enumerate(plan, start=1):
        print(f"[{number}/{len(plan)}] {training.name}", flush=True)
        try:
            done[training] = one_run(training, scale, root, launch)
        except compare.TrainingFailed as error:  # the others need not wait for it
            print(error, flush=True)
            failed.append(training.name)
    if failed:
        raise compare.TrainingFailed(f"{len(failed)} of {len(plan)}: {', '.join(failed)}.")
    found = {name: {t: done[t] for t in scale.trainings(one)} for name, one in chosen.items()}
    return [
        drawn(root / "pictures" / name.replace(" ", "_"), scale.titled(chosen[name]), runs)
        for name, runs in found.items()
        if runs  # a model of it may not be there at this scale
    ]


def drawn(path: Path, picture: Picture, runs: dict[Training, Run]) -> Path:
    """Draw one picture, or print and write one table."""
    made = FORMS[picture.form](picture, runs)
    path = path.with_suffix(".txt" if isinstance(made, str) else ".png")
    if isinstance(made, str):
        print(made)
        write_text(path, made + "\n")
    else:
        plots.save(made, path)
    print(path)
    return path


def one_run(training: Training, scale: Scale, root: Path, launch: compare.Launch) -> Run:
    """The run of a training, trained now unless it was before."""
    options = scale.options(training)
    if baselines.get(options["method"]).needs_profile:
        path = root / "profiles" / f"{training.model}_{training.data}.json"
        options["profile"] = profiled(path, scale.data[training.data][1], options)
    return compare.trained(root / "trainings" / training.name, options, launch)


def profiled(path: Path, classes: int, options: dict[str, Any]) -> Path:
    """The timing profile in `path` for these options, measured now unless it was before."""
    if not path.is_file():
        print(f"Profiling {path}", flush=True)
        names = ("model", "alpha", "input_size", "batch_size", "optimizer", "bn_training")
        chosen = {name: options[name] for name in names if name in options}
        words = words_of({**chosen, "classes": classes, "out": path})
        done = [sys.executable, "-m", "elastic_tf", "profile", *words]
        subprocess.run(done, stdout=subprocess.DEVNULL, check=True)
    return path


def listing() -> str:
    """Figures and tables with what they show."""
    rows = [
        {"name": f"--{kind} {name}", "shows": one.title, "runs": str(len(one.trainings))}
        for kind, group in (("figure", FIGURES), ("table", TABLES))
        for name, one in group.items()
    ]
    return format_table(rows, ("name", "shows", "runs"))


if __name__ == "__main__":
    commandline.run(main)
