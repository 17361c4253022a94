"""A finished run of `train`: its settings, its classes, and its network built again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elastic_tf.app import runs
from elastic_tf.app.commands.train import Settings

if TYPE_CHECKING:
    import tensorflow as tf

RUN = "directory of a finished train"


class Trained(NamedTuple):
    """A finished run, read from its directory."""

    run: runs.Run
    settings: Settings
    class_names: list[str]

    def network(self) -> tf.keras.Model:
        """The network with its trained weights, without what trained it; it returns logits."""
        from elastic_tf.app.commands.training import harness
        from elastic_tf.methods import baselines

        network = harness.network(self.settings, len(self.class_names))
        adapted = baselines.get(self.settings.method).adapt(network)
        self.run.load_weights(adapted)
        return getattr(adapted, "network", adapted)


def load(path: Path) -> Trained:
    """Read a run of `train` that is finished; TensorFlow is loaded when its network is built."""
    run = runs.load(path)
    names, given = (run.result or {}).get("class_names"), run.config["settings"]
    fields = [field.name for field in dataclasses.fields(Settings)]
    if not names or not {"model", "method", "data"} <= given.keys():
        raise ValueError(
            f"`run` must be the {RUN}. Received: '{path}', which "
            f"{'has no result' if run.result is None else 'another program wrote'}. "
            "With the same options and --out, train goes on."
        )
    settings = Settings(**{name: given[name] for name in fields if name in given})
    if (path / runs.NETWORK).is_file():
        settings = dataclasses.replace(settings, model=str(path / runs.NETWORK))
    return Trained(run, settings, names)
