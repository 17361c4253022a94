"""Federated elastic training on Flower: many devices, each trains what its time allows.

In: messages of Flower's server and a device's own model and samples. Out: the tensors that changed,
and at the server their averages. Transport, authentication, scheduling and simulation are Flower's.
"""

from elastic_tf.arguments import extra

with extra("fleet"):
    import flwr as flwr

from elastic_tf.federated.client import evaluate, head, masked, train
from elastic_tf.federated.solved import FederatedHead, solve_head
from elastic_tf.federated.strategy import FedElastic, FedElasticAdam

__all__ = [
    "FedElastic",
    "FedElasticAdam",
    "FederatedHead",
    "evaluate",
    "head",
    "masked",
    "solve_head",
    "train",
]
