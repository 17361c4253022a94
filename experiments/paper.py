"""The paper's figures and tables as named runs.

    python experiments/paper.py --list                       what there is
    python experiments/paper.py --figure 15a --scale small   the runs behind one figure
    python experiments/paper.py --figure 15 --scale paper    behind all its panels
    python experiments/paper.py --table 1                    behind a table
    python experiments/paper.py --scale paper                behind everything
    python experiments/figures.py --figure 15a               draws it from them

Runs stand in OUT/SCALE/DEVICE. What is done is passed over, so that all can be stopped and started
again, and figures share runs. Figures of a second device (16, 17c, 17d, 19c, 19d, 22b, 23b) are the
same runs: start them there, and give that device a name of its own with --device.

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

# isort: split
import paper_measures
import paper_scales
from paper_specs import FIGURES, TABLES, VIT, Picture, Training, pictures

from elastic_tf.app.commands import commandline, contest
from elastic_tf.app.commands.commandline import option, parse, words_of
from elastic_tf.app.runs import run
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import to_json
from elastic_tf.files.table import format_table
from elastic_tf.methods import baselines


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to run."""

    list: bool = option(False, help="list figures and tables, and run nothing")
    figure: str = option("", help="15a, or 15 for all its panels; everything if left out")
    table: str = option("", help="1 or 2")
    scale: str = option("small", help="size of it all", choices=paper_scales.NAMES)
    out: Path = option(Path("runs/paper"), help="directory for all runs")
    device: str = option("here", help="name of this device, for its directory")
    vit_weights: Path | None = option(
        None, help="file of weights for ViT-B/16, for which Keras has none"
    )


def main(
    arguments: Sequence[str] | None = None, launch: contest.Launch = contest.launched
) -> dict[str, Picture]:
    """Run what is not there yet."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.list:
        print(listing())
        return {}
    chosen = pictures(settings.figure, settings.table)
    scale = scale_of(settings)
    root = settings.out / settings.scale / settings.device
    plan = list(dict.fromkeys(t for one in chosen.values() for t in scale.trainings(one)))
    check_weights(plan, scale)
    measures = dict.fromkeys(one.measure for one in chosen.values() if one.measure)
    failed = []
    for number, training in enumerate(plan, start=1):
        print(f"[{number}/{len(plan)}] {training.name}", flush=True)
        try:
            one_run(training, scale, root, launch)
        except contest.TrainingFailed as error:  # the others need not wait for it
            print(error, flush=True)
            failed.append(training.name)
    for name in measures:
        path = measure_path(root, name)
        if not path.is_file():
            print(f"Measuring: {path}", flush=True)
            write_json(path, to_json(paper_measures.MEASURES[name](scale)))
    if failed:
        raise contest.TrainingFailed(f"{len(failed)} of {len(plan)}: {', '.join(failed)}.")
    print(f"All there, in {root}. Draw with experiments/figures.py.")
    return chosen


def one_run(
    training: Training, scale: paper_scales.Scale, root: Path, launch: contest.Launch
) -> run.Run:
    """The run of a training, trained now unless it was before."""
    options = scale.options(training)
    if baselines.get(options["method"]).needs_profile:
        path = root / "profiles" / f"{training.model}_{training.data}.json"
        options["profile"] = profiled(path, scale.classes[training.data], options)
    return contest.trained(run_path(root, training), options, launch)


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


def run_path(root: Path, training: Training) -> Path:
    """Where the run of a training is."""
    return root / "trainings" / training.name


def measure_path(root: Path, name: str) -> Path:
    """Where a measurement is."""
    return root / "measures" / f"{name}.json"


def scale_of(settings: Any) -> paper_scales.Scale:
    """The scale of that name."""
    if settings.scale == "small":
        return paper_scales.small()
    return paper_scales.paper(settings.vit_weights)


def check_weights(trainings: Sequence[Training], scale: paper_scales.Scale) -> None:
    """Refuse, before anything is trained, a ViT without weights.

    Raises:
        ValueError: there are none.
    """
    if any(training.model == VIT for training in trainings):
        if scale.models[VIT].get("weights") is None:
            raise ValueError(
                "Keras has no pre-trained weights for ViT-B/16. Received: no --vit-weights. Give a "
                "file of weights, or take single figures: all others need none."
            )


def listing() -> str:
    """Figures and tables with what they show."""
    rows = [
        {"name": f"--{kind} {name}", "shows": one.title, "runs": len(one.trainings) or "-"}
        for kind, group in (("figure", FIGURES), ("table", TABLES))
        for name, one in group.items()
    ]
    return format_table(
        [{**row, "runs": str(row["runs"])} for row in rows], ("name", "shows", "runs")
    )


if __name__ == "__main__":
    commandline.run(main)
