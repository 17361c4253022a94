"""Say how well a finished training does on its test images, or on others of the same classes.

Example::

    python -m elastic_tf evaluate --run runs/birds --top 5 --out runs/birds

--data takes what train takes; of a folder, the part test/ is evaluated, or all of CLASS/ where that
is not the folder that was trained on. --out is a folder for two
pictures: what is taken for what, and the images of the largest loss.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elastic_tf.app import class_folders
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.trained import network
from elastic_tf.arguments import brief, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORST = 10  # images that are shown


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to evaluate, and on what."""

    run: Path = option(help=network.RUN)
    data: str | None = option(
        None, help=f"{options.DATA}; those of the run if left out", check=options.images
    )
    part: str = option("test", help="of the images", choices=("test", "validation"))
    top: int = option(3, help="most frequent confusions to print", check=partial(count, least=0))
    out: Path | None = option(None, help="folder for pictures of the mistakes")


class Mistake(NamedTuple):
    """An image that is taken for another class; the largest loss comes last in order."""

    loss: float
    number: int  # of the image
    right: int
    found: int
    image: np.ndarray


class Judged(NamedTuple):
    """What a trained network says of images."""

    part: str  # of the images, in words
    accuracy: float  # of them, in [0, 1]
    loss: float  # crossentropy
    names: list[str]  # of the classes
    counts: np.ndarray  # images of a class (row) that were taken for one (column), shape (C, C)
    worst: list[Mistake]  # of the largest loss, the worst first

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.1%}, loss {self.loss:.4f}, of {self.counts.sum()} "
            f"{self.part} images"
        )

    def confusions(self, most: int) -> list[str]:
        """The most frequent ones, in words."""
        wrong = self.counts - np.diag(self.counts.diagonal())
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        return [
            f"{self.names[a]} taken for {self.names[b]}: {wrong[a, b]} of {self.counts[a].sum()}"
            for a, b in zip(*np.unravel_index(order, wrong.shape))
            if wrong[a, b]
        ]

    def pictures(self) -> dict[str, Figure]:
        """What is taken for what, and the worst images where there are any."""
        from elastic_tf import plots

        title = f"{self.part} images: {self.accuracy:.1%} right"
        figures = {"confusion": plots.confusion(self.counts, self.names, title=title)}
        if self.worst:
            names, images = self.names, np.stack([one.image for one in self.worst])
            said = [f"{names[one.right]}, taken\nfor {names[one.found]}" for one in self.worst]
            figures["mistakes"] = plots.image_grid(images, said, title="the largest losses")
        return figures


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Evaluate and print; returns accuracy and loss."""
    settings = parse(Settings, __doc__ or "", arguments)
    found = judged(network.load(settings.run), settings.data, settings.part)
    print(found, *found.confusions(settings.top), sep="\n  ")
    if settings.out is not None:
        from elastic_tf import plots

        for name, figure in found.pictures().items():
            plots.save(figure, settings.out / f"{name}.png")
            print(f"Written to {settings.out / name}.png")
    return {"accuracy": found.accuracy, "loss": found.loss}


def judged(trained: network.Trained, data: str | None = None, part: str = "test") -> Judged:
    """What the trained network says of the run's images, or of others of the same classes."""
    given = dataclasses.replace(trained.settings, data=data or trained.settings.data)
    from elastic_tf.app.commands.training import sources
    from elastic_tf.lite.ridge import crossentropy

    names, root = trained.class_names, Path(given.data)
    if is_whole := data is not None and class_folders.is_flat(root) and not _is_own(trained, root):
        known = class_folders.class_names(root)
    else:
        found = sources.of(given)
        known = list(found.class_names)
    if known != names:
        raise ValueError(
            f"`data` must have the classes of the run, {brief(names)}. Received: "
            f"'{given.data}' with {brief(known)}."
        )
    images: Any = _all(root, names, given) if is_whole else getattr(found, part)
    if images is None:
        raise ValueError(
            f"`part` must be one that there is. Received: part='{part}' of a run with "
            f"validation={given.validation:g}. Use --part test."
        )
    model, each = trained.network(), np.eye(len(names))
    counts, losses, worst = np.zeros((len(names), len(names)), int), list[float](), list[Mistake]()
    for x, y in images:
        logits, labels = model.predict_on_batch(x), np.asarray(y)
        rows = crossentropy(logits.astype(np.float64), each[labels])
        for row, right, said, image in zip(rows, labels, logits.argmax(axis=1), np.asarray(x)):
            counts[right, said] += 1
            if said != right:
                worst.append(Mistake(float(row), len(losses), int(right), int(said), image))
            losses.append(float(row))
        worst = heapq.nlargest(_WORST, worst)
    accuracy = float(np.trace(counts) / counts.sum())
    return Judged(part, accuracy, float(np.mean(losses)), names, counts, worst)


def _is_own(trained: network.Trained, root: Path) -> bool:
    """Whether a folder is the one that was trained on."""
    own = Path(trained.settings.data)
    return own.exists() and own.samefile(root)


def _all(root: Path, names: list[str], settings: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All images in CLASS/, and their classes, a batch at a time."""
    import tensorflow as tf

    from elastic_tf.app.commands.training import harness
    from elastic_tf.app.data import folder

    is_grey = harness.input_shape(settings)[1] == 1
    paths, labels = class_folders.listed(root, names)
    for start in range(0, len(paths), settings.batch_size):
        rows = slice(start, start + settings.batch_size)
        found = [folder.read(path, settings.input_size) for path in paths[rows]]
        images = np.stack(found).astype(np.float32)
        yield tf.image.rgb_to_grayscale(images) if is_grey else images, labels[rows]
