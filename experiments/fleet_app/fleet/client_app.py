"""A device."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from elastic_tf import federated
from fleet import task

app = ClientApp()


def partition(context: Context) -> tuple[int, int]:
    """Which part of the data is this device's, of how many."""
    config = context.node_config
    return int(config["partition-id"]), int(config["num-partitions"])


def slowdown(context: Context) -> float | None:
    """A device with `clock` in its config goes by it; simulated ones are of four speeds."""
    is_real = "clock" in context.node_config
    return None if is_real else 2.0 ** (partition(context)[0] % 4)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A round."""
    samples = task.samples(*partition(context))
    return federated.train(message, context, task.network(), samples, slowdown=slowdown(context))


@app.train("head")
def head(message: Message, context: Context) -> Message:
    """The sums that the head is solved from."""
    return federated.head(message, context, task.network(), task.samples(*partition(context)))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The server's weights on this device's test images."""
    images = task.test_images(*partition(context))
    return federated.evaluate(message, context, task.network(), images)
