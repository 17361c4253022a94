"""Secure aggregation: between Flower's SecAgg+ and `train`.

Flower 1.42 has SecAgg+ for its older messages alone: `SecAggPlusWorkflow` at the server, with a
strategy of `flwr.server.strategy`, and `secaggplus_mod` at the client. `masked` stands behind the
latter: `ClientApp(mods=[secaggplus_mod, masked])`.
"""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as older

from elastic_tf.federated.client import MASKS


def masked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod of Flower's: `train` is given and answers an older message.

    The server's `on_fit_config_fn` must say `dense`: what is added up under masks are the same
    tensors of all clients. A tensor that a client did not train counts as its old value, so that a
    client moves what it trained by its share of all samples. Weights beyond the workflow's
    `clipping_range` are cut off: give one above the largest, and as `max_weight` not much more than
    the largest number of samples, or rounding is coarse.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    given = older.recorddict_to_fitins(message.content, keep_input=True)
    content = RecordDict(
        {
            "arrays": ArrayRecord(parameters_to_ndarrays(given.parameters)),
            "config": ConfigRecord(dict(given.config)),
            MASKS: message.content.config_records[MASKS],
        }
    )
    answer = call_next(Message(content, metadata=message.metadata), context)
    metrics = dict(answer.content["metrics"])
    result = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters(answer.content["arrays"].to_numpy_ndarrays()),
        int(metrics.pop("num-examples")),
        metrics,
    )
    return Message(older.fitres_to_recorddict(result, keep_input=False), reply_to=message)
