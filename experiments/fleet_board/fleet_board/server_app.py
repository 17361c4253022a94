"""The server, where elastic_tf is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from elastic_tf import federated
from elastic_tf.lite.trainer import Trainer

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds from the exported weights on."""
    config = context.run_config
    if not config["folder"]:
        raise ValueError(
            "`folder` must be what was exported. Received: none. Give it in --run-config."
        )
    trainer = Trainer(str(config["folder"]), interpreter=tf.lite.Interpreter)
    arrays = ArrayRecord([trainer.weights[k] for k in sorted(trainer.weights)])
    nodes = int(config["min-nodes"])
    strategy = federated.FedElastic(
        min_available_nodes=nodes, min_train_nodes=nodes, fraction_evaluate=0.0
    )
    sent = {"seconds": config["seconds"], "epochs": config["epochs"]}
    sent |= {"dtype": "int8", "down": "float16"}
    rounds = int(config["num-server-rounds"])
    result = strategy.start(grid, arrays, rounds, train_config=ConfigRecord(sent))
    found = np.load(Path(str(config["folder"])) / "digits.npz")
    for name, values in (("exported", arrays), ("trained", result.arrays)):
        trainer.close()
        trainer.weights = dict(zip(sorted(trainer.weights), values.to_numpy_ndarrays()))
        accuracy = trainer.evaluate(found["x_test"], found["y_test"])["accuracy"]
        print(f"Accuracy, {name}: {accuracy:.1%}")
