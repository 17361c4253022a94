"""What can be done with a finished `train`: its network built again, evaluated, and asked."""

from __future__ import annotations

import dataclasses
import heapq
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elastic_tf.app import class_folders, runs
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.settings import DATA, Train
from elastic_tf.app.commands.settings import images as check_images
from elastic_tf.arguments import brief, count
from elastic_tf.files import as_utf8

if TYPE_CHECKING:
    import tensorflow as tf
    from matplotlib.figure import Figure

RUN = "directory of a finished train"
_WORST = 10  # images that are shown


class Trained(NamedTuple):
    """A finished run, read from its directory."""

    run: runs.Run
    settings: Train
    class_names: list[str]

    def network(self) -> tf.keras.Model:
        """The network with its trained weights, without what trained it; it returns logits."""
        from elastic_tf.app.commands import harness
        from elastic_tf.methods import baselines

        network = harness.network(self.settings, len(self.class_names))
        adapted = baselines.get(self.settings.method).adapt(network)
        self.run.load_weights(adapted)
        return getattr(adapted, "network", adapted)


def load(path: Path) -> Trained:
    """Read a run of `train` that is finished; TensorFlow is loaded when its network is built."""
    run = runs.load(path)
    names, given = (run.result or {}).get("class_names"), run.config["settings"]
    if not names or not {"model", "method", "data"} <= given.keys():
        raise ValueError(
            f"`run` must be the {RUN}. Received: '{path}', which "
            f"{'has no result' if run.result is None else 'another program wrote'}. "
            "With the same options and --out, train goes on."
        )
    fields = [field.name for field in dataclasses.fields(Train)]
    settings = Train(**{name: given[name] for name in fields if name in given})
    if (path / runs.NETWORK).is_file():
        settings = dataclasses.replace(settings, model=str(path / runs.NETWORK))
    return Trained(run, settings, names)


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


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """What to evaluate, and on what."""

    run: Path = option(help=RUN)
    data: str | None = option(
        None, help=f"{DATA}; those of the run if left out", check=check_images
    )
    part: str = option("test", help="of the images", choices=("test", "validation"))
    top: int = option(3, help="most frequent confusions to print", check=partial(count, least=0))
    out: Path | None = option(None, help="folder for pictures of the mistakes")


def evaluate(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Say how well a finished training does on its test images, or on others of the same classes.

    Example::

        python -m elastic_tf evaluate --run runs/birds --top 5 --out runs/birds

    --data takes what train takes; of a folder, the part test/ is evaluated, or all of CLASS/ where
    that is not the folder that was trained on. --out is a folder for two pictures: what is taken
    for what, and the images of the largest loss.
    """
    settings = parse(Evaluate, evaluate.__doc__, arguments)
    found = judged(load(settings.run), settings.data, settings.part)
    print(found, *found.confusions(settings.top), sep="\n  ")
    if settings.out is not None:
        from elastic_tf import plots

        for name, figure in found.pictures().items():
            plots.save(figure, settings.out / f"{name}.png")
            print(f"Written to {settings.out / name}.png")
    return {"accuracy": found.accuracy, "loss": found.loss}


def judged(trained: Trained, data: str | None = None, part: str = "test") -> Judged:
    """What the trained network says of the run's images, or of others of the same classes."""
    given = dataclasses.replace(trained.settings, data=data or trained.settings.data)
    from elastic_tf.app.commands import harness
    from elastic_tf.lite.ridge import crossentropy

    names, root, own = trained.class_names, Path(given.data), Path(trained.settings.data)
    is_own = data is None or (own.exists() and root.exists() and own.samefile(root))
    if is_whole := not is_own and class_folders.is_flat(root):
        known = class_folders.class_names(root)
    else:
        _, found = harness.with_images(given)
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


def _all(root: Path, names: list[str], settings: Train) -> Iterator[tuple[Any, np.ndarray]]:
    """All images in CLASS/, and their classes, a batch at a time."""
    from elastic_tf.app.commands import harness

    size, channels = harness.input_shape(settings)
    paths, labels = class_folders.listed(root, names)
    for start in range(0, len(paths), settings.batch_size):
        rows = slice(start, start + settings.batch_size)
        yield np.stack([_read(path, size, channels) for path in paths[rows]]), labels[rows]


def _read(path: str, size: int, channels: int) -> np.ndarray:
    """The image in a file as a network takes it; float32 (size, size, channels)."""
    import tensorflow as tf

    from elastic_tf.app.data import read_image

    image = read_image(path, size).astype(np.float32)
    return image if channels == 3 else tf.image.rgb_to_grayscale(image).numpy()


@dataclasses.dataclass(frozen=True)
class Predict:
    """Which images, and how to say what they show."""

    images: tuple[Path, ...] = option(
        help="image files, and folders of them with all below", bare="IMAGE_OR_FOLDER"
    )
    run: Path = option(help=RUN)
    top: int = option(3, help="classes to name for each image", check=count)
    json: bool = option(False, help="a JSON object for each image")


def predict(arguments: Sequence[str] | None = None) -> None:
    """Say what images show, by a finished training.

    Example::

        python -m elastic_tf predict --run runs/birds --top 3 one.jpg holiday/

    A line for each image: its path, and the most probable classes. What cannot be read gets a line
    on the error output, and the exit code is then 1.
    """
    settings = parse(Predict, predict.__doc__, arguments)
    trained = load(settings.run)
    paths = list[str]()
    for given in settings.images:
        paths += (found := list(_below(given)))
        if not found:
            raise ValueError(f"There must be an image. Received: '{given}', which holds no file.")
    import tensorflow as tf

    model = trained.network()
    _, size, _, channels = model.input_shape
    unread = 0
    for path in paths:
        try:
            image = _read(path, size, channels)
        except ValueError as error:
            unread += 1
            print(f"error: {as_utf8(str(error))}", file=sys.stderr)
            continue
        row = tf.nn.softmax(model.predict_on_batch(image[None])[0]).numpy()
        likely = np.argsort(row)[::-1][: settings.top]
        classes = {trained.class_names[k]: float(row[k]) for k in likely}
        if settings.json:
            print(json.dumps({"path": as_utf8(path), "classes": classes}))
        else:
            said = ", ".join(f"{name} {share:.1%}" for name, share in classes.items())
            print(f"{as_utf8(path)}: {said}")
    if unread:
        raise SystemExit(1)


def _below(path: Path) -> Iterator[str]:
    """The file itself, or all files in a folder and in those below, sorted."""
    if not path.is_dir():
        yield str(path)
        return
    for name in class_folders.visible(path, folders=False):
        yield from _below(path / name)
