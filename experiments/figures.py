"""Draw the paper's figures and print its tables from the runs of paper.py.

    python experiments/figures.py --figure 15a       one figure, or 15 for all its panels
    python experiments/figures.py                    everything that there are runs for

Pictures go to OUT/SCALE/DEVICE/pictures, tables beside them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # noqa: F401 (before TensorFlow: it quiets its start-up)

# isort: split
import paper
from figure_forms import FORMS, NothingToDraw
from paper_specs import Picture, pictures

from elastic_tf import plots
from elastic_tf.app.commands import commandline
from elastic_tf.app.commands.commandline import parse
from elastic_tf.app.runs import run
from elastic_tf.files.atomic import write_text


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    """Draw what there are runs for; returns the files."""
    settings = parse(paper.Settings, __doc__ or "", arguments)
    if settings.list:
        print(paper.listing())
        return []
    chosen = pictures(settings.figure, settings.table)
    scale = paper.scale_of(settings)
    root = settings.out / settings.scale / settings.device
    everything = not settings.figure and not settings.table
    written = []
    for name, picture in chosen.items():
        try:
            source = found(picture, scale, root, settings)
            drawn = FORMS[picture.form](scale.titled(picture), source)
        except NothingToDraw as reason:
            print(f"{name}: nothing to draw, {reason}.")
            continue
        except FileNotFoundError as missing:
            if not everything:
                raise
            print(f"{name}: {missing}")
            continue
        path = root / "pictures" / name.replace(" ", "_")
        if isinstance(drawn, str):
            print(f"\n{name}: {drawn}")
            path = path.with_suffix(".txt")
            write_text(path, drawn + "\n")
        else:
            path = path.with_suffix(".png")
            plots.save(drawn, path)
        print(f"{name}: {path}")
        written.append(path)
    return written


def found(picture: Picture, scale: Any, root: Path, settings: Any) -> Any:
    """The measurement of a picture, or its finished runs by training.

    Raises:
        FileNotFoundError: something is not there yet; the message says how to get it.
    """
    way = f"python experiments/paper.py --scale {settings.scale} --device {settings.device}"
    if picture.measure is not None:
        path = paper.measure_path(root, picture.measure)
        if not path.is_file():
            raise FileNotFoundError(f"The measurement '{path}' is not there. Make it with {way}.")
        return json.loads(path.read_text(encoding="utf-8"))
    finished = {}
    for training in scale.trainings(picture):
        path = paper.run_path(root, training)
        if not (path / "result.json").is_file():
            raise FileNotFoundError(f"The run '{path}' is not finished. Make it with {way}.")
        finished[training] = run.load(path)
    if not finished:
        raise NothingToDraw(f"no model of it is there at scale {settings.scale}")
    return finished


if __name__ == "__main__":
    commandline.run(main)
