"""Training an exported model where it is used: NumPy, Pillow and ai-edge-litert are all it takes.

python trainer.py fit FOLDER --epochs 5 --seconds 600     images in FOLDER/CLASS/
python trainer.py predict IMAGE...
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from . import disk, updates
    from .fitting import Fit
    from .ridge import crossentropy
else:  # in the exported folder
    import disk
    import updates
    from fitting import Fit
    from ridge import crossentropy

_LOOKS = 5  # steps whose median is the time of a plan, after one that makes ready


class Trainer:
    """An exported model, which predicts and trains.

    Args:
        folder: what `elastic_tf.app.export.litert` wrote.
        interpreter: what runs a file, such as `tf.lite.Interpreter`; None: that of ai-edge-litert.
        threads: of the interpreter and the updates; None: one per core, four at most.

    Raises:
        ValueError: a file of the folder is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        interpreter: Callable[..., Any] | None = None,
        threads: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.model = disk.read_model(self.folder)
        if interpreter is None:
            try:
                from ai_edge_litert.interpreter import Interpreter
            except ImportError as error:
                way = 'Install it: pip install "ai-edge-litert!=2.0.*"'
                raise ImportError(f"{error}. {way}.") from error
            interpreter = Interpreter
        self._make: Callable[..., Any] = interpreter
        self._threads = threads or min(os.cpu_count() or 1, 4)
        self._open: dict[str, tuple[Any, dict[str, int], dict[str, int]]] = {}
        self.class_names: list[str] | None = None
        self.weights: dict[int, np.ndarray] = {}  # by the tensor's number
        self.slots: dict[int, list[np.ndarray]] = {}  # of the tensors that were ever updated
        self.steps: dict[int, int] = {}  # updates of these
        self.load(self.folder / "weights.state")
        self.batch_size: int = self.model["batch_size"]
        self.plans: list[dict[str, Any]] = self.model["plans"]
        self._shape = tuple(self.model["input_shape"])

    def call(
        self, name: str, *, keep: str | None = None, views: bool = False, **values: np.ndarray
    ) -> dict[str, np.ndarray]:
        """What a function of the folder returns; it and `keep` stay open, others are closed.

        With `views` it is the interpreter's memory, to be dropped before the next call.
        """
        self._open = {one: kept for one, kept in self._open.items() if one in (name, keep)}
        if name not in self._open:
            content = self._with_constants(name)
            interpreter = self._make(model_content=content, num_threads=self._threads)
            runner = interpreter.get_signature_runner()
            inputs, outputs = (
                {key: int(one["index"]) for key, one in details.items()}
                for details in (runner.get_input_details(), runner.get_output_details())
            )
            del runner  # while it is there the interpreter lets nobody else run it
            interpreter.allocate_tensors()
            self._open[name] = interpreter, inputs, outputs
        interpreter, inputs, outputs = self._open[name]
        for key, index in inputs.items():
            given = values[key] if key in values else self.weights[int(key[1:])]
            interpreter.set_tensor(index, given)
        interpreter.invoke()
        return {
            key: interpreter.tensor(index)() if views else interpreter.get_tensor(index)
            for key, index in outputs.items()
        }

    def close(self) -> None:
        """Let go of open functions: they hold constants of before, where weights are replaced."""
        self._open.clear()

    def _with_constants(self, name: str) -> bytes:
        """The file of a function, with the weights of now where it holds them as constants."""
        content = bytearray((self.folder / f"{name}.tflite").read_bytes())
        for index, (start, first) in self.model["constants"][name].items():
            value = self.weights[int(index)]
            ordered = np.moveaxis(value, -1, 0) if first else value
            content[start : start + value.nbytes] = ordered.tobytes()
        return bytes(content)

    def step(
        self, plan: int, batch: dict[str, np.ndarray], rate: float, *, cached: bool = False
    ) -> float:
        """Train a plan on a batch and return the loss; nothing changes where it is not finite.

        If `cached`, x holds what the plan's `features` say, not images.
        """
        before, train = self.plans[plan]["features"], f"train_{plan}"
        if before and not cached:
            batch = {**batch, "x": self.call(before, keep=train, x=batch["x"])["features"]}
        found = self.call(train, keep=None if cached else before, views=True, **batch)
        loss, told, changed = float(found.pop("loss")), self.model["optimizer"], []
        for key in sorted(found) if math.isfinite(loss) else ():
            index = int(key[1:])
            value = self.weights[index]
            if index not in self.slots:
                self.slots[index] = updates.slots(told, index, value)
            self.steps[index] = self.steps.get(index, 0) + 1
            changed.append((index, self.steps[index], (value, found[key], *self.slots[index])))
        updates.update(told, rate, changed, self._threads)
        return loss

    def seconds(self, plan: int, batch: dict[str, np.ndarray]) -> tuple[float, float]:
        """Median seconds of what comes before a plan and of its step, which are thrown away."""
        name, before = self.plans[plan]["features"], 0.0
        held = {k: self.weights[k].copy() for k in self.plans[plan]["tensors"]}
        try:
            if name:
                before, found = _timed(self.call, name, x=batch["x"])
                batch = {**batch, "x": found["features"]}
            return before, _timed(self.step, plan, batch, 0.0, cached=True)[0]
        finally:
            self.weights.update(held)
            self.slots, self.steps = {}, {}

    def save(self, path: str | Path, run: dict[str, Any] | None = None) -> None:
        """Write weights, slots and the values of a training that goes on, whole or not at all."""
        for k, value in self.weights.items():
            if not np.isfinite(value).all():
                name = self.model["tensors"][k]["name"]
                raise FloatingPointError(
                    f"Weights must be finite. Received: NaN or infinity in '{name}'. Take a lower "
                    f"rate; what '{path}' holds is of before."
                )
        header = {"model": self.model["checksum"], "class_names": self.class_names}
        header.update(run or {"done": True, "key": None}, updates=list(self.steps.items()))
        slots = (one for index in self.steps for one in self.slots[index])
        disk.write_state(Path(path), header, [*self.weights.values(), *slots])

    def load(self, path: str | Path) -> dict[str, Any]:
        """Take weights and slots that `save` or `fit` wrote, and return the JSON values."""
        header, arrays = disk.read_state(Path(path), self.model["checksum"])
        values, told = iter(arrays), self.model["optimizer"]
        self.close()
        self.weights = {index: next(values) for index in self.model["held"]}
        self.steps = dict(header["updates"])
        self.slots = {
            index: [next(values) for _ in updates.slots(told, index, self.weights[index])]
            for index in self.steps
        }
        self.class_names = header["class_names"]
        return header

    def predict(self, x: Any) -> np.ndarray:
        """Logits of images, (n, classes): an array (n, height, width, channels) of 0 to 255."""
        return np.concatenate(list(self.features("infer", self._images(x))))

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Accuracy and mean crossentropy."""
        x, y = self._data(x, y)
        logits = np.concatenate(list(self.features("infer", x))).astype(np.float64)
        loss = crossentropy(logits, np.eye(logits.shape[1])[y]).mean()
        return {"accuracy": float((logits.argmax(axis=1) == y).mean()), "loss": float(loss)}

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 5,
        seconds: float | None = None,
        validation: Any = None,
        rate: float | None = None,
        plan: int | None = None,
        state: str | Path | None = None,
        verbose: bool = True,
    ) -> list[dict[str, Any]]:
        """Solve the head in closed form, then train a plan, and keep what is good.

        With the same arguments, a training that was killed goes on from its state, and one that has
        ended is not repeated. Its weights are then those of a training without interruption, bit
        for bit; with `seconds`, those that were spent up to the state count.

        Args:
            x: images, (n, height, width, channels) of 0 to 255; or a folder of class folders.
            y: class numbers; None for a folder.
            epochs: passes over the images, fewer only where there is no time.
            seconds: for all of it: the largest plan that fits by the clock is trained, in fewer
                steps if the device turns slower.
            validation: (x, y) or a folder; the last weights are kept whose accuracy on it is as
                good as the best so far, within two standard errors. Without it those of the least
                loss: of an epoch, or of the solved head on images left out.
            rate: the highest, before a cosine to 0; None: what was exported.
            plan: to train this one alone, 0 is the cheapest; None: the largest that fits.
            state: file that keeps the training; None: FOLDER/trained.state.
            verbose: show progress.

        Returns:
            For each epoch, and first of what is there before: loss, plan, seconds so far, and
            accuracy with `validation`.

        Raises:
            ValueError: arguments or data do not fit, or the state is of another training.
            OSError: the disk is full. What was kept stays.
        """
        began, data, held = time.monotonic(), self._data(x, y), None
        if validation is not None:
            held = self._data(*(validation if isinstance(validation, tuple) else [validation]))
        options = {"epochs": epochs, "seconds": seconds, "rate": rate, "plan": plan}
        path = Path(state or self.folder / "trained.state")
        return Fit(self, data, held, path, began, verbose, options).run()

    def _data(self, x: Any, y: Any = None) -> tuple[Any, np.ndarray]:
        """Images and their labels, of arrays or a folder."""
        if isinstance(x, (str, Path)):
            files, y, self.class_names = disk.class_folders(x, self.class_names)
            x = disk.Rows(self.folder)
            for file in files:
                x.append(disk.read_image(file, self._shape)[None])
        x, y, classes = self._images(x), np.asarray(y), self.model["classes"]
        whole = y.dtype.kind in "iu" and y.shape == (len(x),)
        if not whole or y.min() < 0 or y.max() >= classes:
            raise ValueError(
                f"`y` must hold class numbers from 0 to {classes - 1}, one for each image. "
                f"Received: {y.dtype} of shape {y.shape} for {len(x)} images: {y.ravel()[:5]}."
            )
        return x, y.astype(np.int32)

    def _images(self, x: Any) -> Any:
        if isinstance(x, disk.Rows):
            return x
        x = np.asarray(x)
        if x.dtype.kind not in "uif" or x.shape[1:] != self._shape or not len(x):
            raise ValueError(
                f"`x` must hold images (n, {', '.join(map(str, self._shape))}) of 0 to 255. "
                f"Received: {x.dtype} of shape {x.shape}."
            )
        some = x[:: max(len(x) // 64, 1)]
        least, most = some.min(), some.max()
        if not 0.0 <= least <= most <= 255.0 or (x.dtype.kind == "f" and most <= 1.0):
            raise ValueError(
                f"`x` must hold values from 0 to 255. Received: from {least} to {most}. Multiply "
                "images of 0 to 1 by 255."
            )
        return x

    def batch(self, x: Any, y: Any, rows: Any) -> dict[str, np.ndarray]:
        """What a training step takes of these rows, a short batch filled up with weight 0."""
        part = x[rows]
        given = {"x": part.astype("f4"), "y": y[rows].astype("i4")}
        given["weight"] = np.ones(len(part), "f4")
        if short := self.batch_size - len(part):
            for name, one in given.items():
                given[name] = np.concatenate([one, np.zeros((short, *one.shape[1:]), one.dtype)])
        return given

    def features(self, name: str, x: Any) -> Iterator[np.ndarray]:
        """What a function says of all images, batch by batch in order."""
        none = np.zeros(len(x), np.int32)
        for start in range(0, len(x), self.batch_size):
            given = self.batch(x, none, slice(start, start + self.batch_size))
            (found,) = self.call(name, x=given["x"]).values()
            yield found[: len(x) - start]


def _timed(function: Any, *given: Any, **named: Any) -> tuple[float, Any]:
    """Median seconds of a function that is warm, and what it returned."""
    found, seconds = function(*given, **named), []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        found = function(*given, **named)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=Path(__file__).parent, help="the exported folder")
    commands = parser.add_subparsers(dest="command", required=True)
    fit = commands.add_parser("fit", help="train on FOLDER/CLASS/, or FOLDER/train and test")
    fit.add_argument("images", type=Path, metavar="FOLDER")
    fit.add_argument("--epochs", type=int, default=5, help="passes over the images, at most")
    fit.add_argument("--seconds", type=float, help="for all of it; else until the epochs are over")
    fit.add_argument("--rate", type=float, help="the highest learning rate; else what was exported")
    fit.add_argument("--plan", type=int, help="what to train, 0 the least; else the most that fits")
    predict = commands.add_parser("predict", help="say what images show")
    predict.add_argument("images", nargs="+", metavar="IMAGE")
    options = vars(parser.parse_args(arguments))
    command, source = options.pop("command"), options.pop("images")
    try:
        trainer = Trainer(options.pop("model"))
        if command == "fit":
            parts = source / "train", source / "test"
            has_parts = all(part.is_dir() for part in parts)
            trainer.fit(parts[0] if has_parts else source, **options)
            if has_parts:
                print(f"Accuracy on '{parts[1]}': {trainer.evaluate(parts[1])['accuracy']:.1%}")
            return 0
        if (state := trainer.folder / "trained.state").is_file():  # else as it was exported
            trainer.load(state)
        names = dict(enumerate(trainer.class_names or ()))
        failed = 0
        for path in source:
            try:
                image = disk.read_image(path, trainer.model["input_shape"])
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = 1
                continue
            logits = trainer.predict(image[None])[0].astype(np.float64)
            share = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            said = (f"{names.get(k, k)} {share[k]:.1%}" for k in np.argsort(-share)[:3].tolist())
            print(f"{path}: {', '.join(said)}")
        return failed
    except (OSError, ValueError, ImportError, ArithmeticError, MemoryError, RuntimeError) as error:
        print(f"error: {error or 'there is not enough memory'}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
