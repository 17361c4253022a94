"""Which weights of a training to keep, by few held-out images; half of the images are trained on.

    python experiments/kept_weights.py --data FOLDER --weights FILE --seeds 3 --out runs/kept.json

`finetune` without an end gives candidates: the first head, each epoch, the head solved again. Of
the other half, so many images are drawn, 300 times, to choose a candidate by a rule; the rest says
what it is worth. Beside that, the crossentropy of the head solved again, at its own scale and at
that of the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import first_second
import numpy as np
import tensorflow as tf

from elastic_tf import fine_tuning
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.choose.budget import course
from elastic_tf.files import format_table, write_json
from elastic_tf.lite.ridge import crossentropy
from elastic_tf.train.head import solve

DRAWS, HELD_OUT = 300, (30, 50, 120)
# (accuracy and loss of each candidate, samples) -> which is kept
Rule = Callable[[np.ndarray, np.ndarray, int], int]
COLUMNS = ("held_out", "kept", "gain:.2f:points ahead of the head")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Images, network and seeds."""

    data: Path = option(help="a folder with train/CLASS")
    weights: Path = option(help="file of the base's weights, without top")
    model: str = option("mobilenet", help="or mobilenet_v2", choices=("mobilenet", "mobilenet_v2"))
    seeds: int = option(3, help="how many")
    epochs: int = option(5, help="of each training")
    mirrored: bool = option(False, help="train on mirror images, too")
    out: Path = option(Path("runs/kept_weights.json"), help="JSON file of the results")


def best(accuracy: np.ndarray, loss: np.ndarray, count: int) -> int:
    """The highest accuracy; of equal ones the smaller loss."""
    return int(np.lexsort((-loss, accuracy))[-1])


def last_or_head(accuracy: np.ndarray, loss: np.ndarray, count: int) -> int:
    """The end, unless the head is better."""
    return len(accuracy) - 1 if accuracy[-1] >= accuracy[0] else 0


def last_near(which: Callable[[np.ndarray], float], times: float) -> Rule:
    """The last that is not worse than that by more than so many standard errors."""

    def rule(accuracy: np.ndarray, loss: np.ndarray, count: int) -> int:
        most = which(accuracy)
        least = most - times * np.sqrt(most * (1.0 - most) / count)
        return int(np.flatnonzero(accuracy >= least)[-1])

    return rule


RULES: dict[str, Rule] = {
    "highest held-out accuracy": best,
    "last not worse than the head by a standard error": last_near(lambda one: one[0], 1.0),
    "last not worse than any by a standard error": last_near(np.max, 1.0),
    "last not worse than any by two standard errors": last_near(np.max, 2.0),
    "the last, whatever it is": lambda accuracy, loss, count: len(accuracy) - 1,
    "the end if not below the head": last_or_head,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, choose, print and write."""
    settings = parse(Settings, __doc__ or "", arguments)
    found: dict[tuple[int, str], list[float]] = {}
    losses = []
    for seed in range(settings.seeds):
        logits, y, scales = trained(settings, seed)
        wanted = np.eye(logits.shape[2])[y]
        right = logits.argmax(axis=2) == y
        each = np.stack([crossentropy(part, wanted) for part in logits])
        again = crossentropy(logits[-1] * scales[1] / scales[0], wanted)
        told = {"head": each[0].mean(), "own_scale": again.mean(), "first_scale": each[-1].mean()}
        losses.append({"seed": seed, **{name: float(value) for name, value in told.items()}})
        rng = np.random.default_rng(seed)
        for size in HELD_OUT:
            for _ in range(DRAWS):
                order = rng.permutation(len(y))
                held, rest = order[:size], order[size:]
                accuracy, loss = (part[:, held].mean(axis=1) for part in (right, each))
                for name, rule in RULES.items():
                    kept = rule(accuracy, loss, size)
                    gain = 100 * (right[kept][rest].mean() - right[0][rest].mean())
                    found.setdefault((size, name), []).append(float(gain))
    rows = [
        {"held_out": size, "kept": name, "gain": float(np.mean(gains))}
        for (size, name), gains in found.items()
    ]
    print(format_table(rows, COLUMNS), *losses, sep="\n")
    write_json(settings.out, {"data": settings.data.name, "gain": rows, "loss": losses})


def trained(settings: Settings, seed: int) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Logits of each candidate on the other half, its classes, and the scales of both heads."""
    tf.keras.utils.set_random_seed(seed)
    x, y = first_second.images(settings.data / "train")
    order = np.random.default_rng(100 + seed).permutation(len(y))
    train, other = order[: len(y) // 2], order[len(y) // 2 :]
    views: dict[str, Any] = {"augment": tf.image.stateless_random_flip_left_right, "views": 2}
    views = views if settings.mirrored else {}
    samples = et.Samples(x[train], y[train], batch_size=first_second.BATCH, **views)
    logits: list[np.ndarray] = []
    scales: list[float] = []

    class Watched(course.Course):
        """Says of each candidate what it makes of the other half."""

        def _judge(self, name: str, logs: dict[str, float]) -> None:
            logits.append(self.model.predict(x[other], batch_size=64, verbose=0))
            super()._judge(name, logs)

    def solved_again(model: Any, samples: Any, first: Any) -> bool:
        scales.extend([first.scale, solve.solve_head(model, samples, layer=first.layer).scale])
        return solve.solve_again(model, samples, first)

    fine_tuning.Course, course.solve_again = Watched, solved_again
    judged = x[other[:16]], y[other[:16]]
    base = first_second.network(settings.model, settings.weights)
    et.finetune(base, samples, judged, seconds=1e5, epochs=settings.epochs, verbose=0)
    return np.stack(logits), y[other], scales


if __name__ == "__main__":
    main()
