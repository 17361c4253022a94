"""A board: NumPy, Pillow, ai-edge-litert and Flower."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fleet_board import board  # copied from elastic_tf/federated

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A round on this board's images."""
    config = context.node_config
    folder, part, parts = (config[k] for k in ("folder", "partition-id", "num-partitions"))
    sys.path.insert(0, str(folder))
    try:
        from trainer import Trainer
    except ImportError as error:
        raise ValueError(
            f"`folder` must hold the runner. Received: '{folder}', where {error}. Copy "
            "elastic_tf/lite/*.py into it."
        ) from error

    found = np.load(Path(str(folder)) / "digits.npz")
    x, y = (found[name][int(part) :: int(parts)] for name in ("x", "y"))
    return board.train(message, context, Trainer(str(folder)), x, y)
