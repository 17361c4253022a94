"""The server."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from elastic_tf import federated
from fleet import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The head of all devices, rounds with a deadline, and the head again."""
    config = context.run_config
    model = task.network()
    arrays = ArrayRecord(model.get_weights())
    nodes = int(config["min-nodes"])
    strategy = federated.FedElastic(
        min_available_nodes=nodes, min_train_nodes=nodes, fraction_evaluate=0.0
    )
    backup = Path(str(config["backup"])) if config["backup"] else None
    sent = ConfigRecord({"down": config["down"]})
    strategy.known(arrays)  # what every device begins with need not be sent
    timeout = float(config["timeout"])
    if backup is None or not backup.exists():
        first = federated.solve_head(strategy, grid, arrays, sent, timeout=timeout)
        print(f"Solved on {first.samples:.0f} samples of {first.clients} devices.")
        arrays = first.arrays
    result = strategy.start(
        grid,
        arrays,
        int(config["num-server-rounds"]),
        timeout,
        train_config=ConfigRecord(
            {
                "seconds": config["seconds"],
                "rate": config["learning-rate"],
                "rounds": config["num-server-rounds"],
                "dtype": config["dtype"],
                "down": config["down"],
            }
        ),
        backup=backup,
    )
    last = federated.solve_head(strategy, grid, result.arrays, sent, timeout=timeout)
    for name, found in (("trained", result.arrays), ("head solved again", last.arrays)):
        model.set_weights(found.to_numpy_ndarrays())
        accuracy = model.evaluate(*task.test_images(), verbose=0, return_dict=True)["accuracy"]
        print(f"Accuracy, {name}: {accuracy:.1%}")
    model.save_weights("fleet.weights.h5")
