"""Say how well a finished training does on its test images, or on others of the same classes.

Example::

    python -m elastic_tf evaluate --run runs/birds --top 5

--data takes what train takes; of a folder, the part test/ is evaluated.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.trained import network


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to evaluate, and on what."""

    run: Path = option(help=network.RUN)
    data: str | None = option(
        None, help=f"{options.DATA}; those of the run if left out", check=options.images
    )
    part: str = option("test", help="of the images", choices=("test", "validation"))
    top: int = option(
        3, help="most frequent confusions to print", check=partial(checks.count, least=0)
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Evaluate and print; returns accuracy and loss."""
    settings = parse(Settings, __doc__ or "", arguments)
    trained = network.load(settings.run)
    given = dataclasses.replace(trained.settings, data=settings.data or trained.settings.data)
    from elastic_tf.app.commands.training import harness, sources

    data = sources.of(given)
    names = trained.class_names
    if list(data.class_names) != names:
        raise ValueError(
            f"`data` must have the classes of the run, {checks.brief(names)}. Received: "
            f"'{given.data}' with {checks.brief(list(data.class_names))}."
        )
    images = getattr(data, settings.part)
    if images is None:
        raise ValueError(
            f"`part` must be one that there is. Received: part='{settings.part}' of a run with "
            f"validation={given.validation:g}. Use --part test."
        )
    model = trained.network()
    pairs = [(model.predict_on_batch(x), y.numpy()) for x, y in images]
    logits, labels = (np.concatenate(part) for part in zip(*pairs))
    found, loss = logits.argmax(axis=1), float(harness.loss()(labels, logits))
    accuracy = float(np.mean(found == labels))
    print(f"accuracy {accuracy:.1%}, loss {loss:.4f}, of {len(labels)} {settings.part} images")
    wrong, counts = found != labels, np.bincount(labels)
    confused = Counter(zip(labels[wrong].tolist(), found[wrong].tolist()))
    for (right, taken), count in confused.most_common(settings.top):
        print(f"  {names[right]} taken for {names[taken]}: {count} of {counts[right]}")
    return {"accuracy": accuracy, "loss": loss}
