"""Say what images show, by a finished training.

Example::

    python -m elastic_tf predict --run runs/birds --top 3 one.jpg holiday/

A line for each image: its path, and the most probable classes. What cannot be read gets a line on
the error output, and the exit code is then 1.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.app.class_folders import visible
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.trained import network
from elastic_tf.files import as_utf8


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which images, and how to say what they show."""

    images: tuple[Path, ...] = option(
        help="image files, and folders of them with all below", bare="IMAGE_OR_FOLDER"
    )
    run: Path = option(help=network.RUN)
    top: int = option(3, help="classes to name for each image", check=checks.count)
    json: bool = option(False, help="a JSON object for each image")


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict and print."""
    settings = parse(Settings, __doc__ or "", arguments)
    trained = network.load(settings.run)
    paths = list[str]()
    for given in settings.images:
        paths += (found := list(below(given)))
        if not found:
            raise ValueError(f"There must be an image. Received: '{given}', which holds no file.")
    import tensorflow as tf

    from elastic_tf.app.data import folder

    model = trained.network()
    _, size, _, channels = model.input_shape
    unread = 0
    for path in paths:
        try:
            image = folder.read(path, size)[None].astype(np.float32)
        except ValueError as error:
            unread += 1
            print(f"error: {as_utf8(str(error))}", file=sys.stderr)
            continue
        x = image if channels == 3 else tf.image.rgb_to_grayscale(image)
        row = tf.nn.softmax(model.predict_on_batch(x)[0]).numpy()
        likely = np.argsort(row)[::-1][: settings.top]
        classes = {trained.class_names[k]: float(row[k]) for k in likely}
        if settings.json:
            print(json.dumps({"path": as_utf8(path), "classes": classes}))
        else:
            said = ", ".join(f"{name} {share:.1%}" for name, share in classes.items())
            print(f"{as_utf8(path)}: {said}")
    if unread:
        raise SystemExit(1)


def below(path: Path) -> Iterator[str]:
    """The file itself, or all files in a folder and in those below, sorted."""
    if not path.is_dir():
        yield str(path)
        return
    for name in visible(path, folders=False):
        yield from below(path / name)
