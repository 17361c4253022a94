"""Flower's grid in this process: messages go from a strategy to ClientApps without Ray or a socket.

It counts the bytes that Flower counts (`message_size_mod`), and may lose, delay or change answers.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


def size(content: RecordDict) -> int:
    """Bytes of a message as Flower counts them; it cannot count empty texts and lists, 1.42."""
    total = 0
    for record in content.values():
        with contextlib.suppress(ValueError, IndexError):
            total += record.count_bytes()
    return total


class Here(Grid):
    """Nodes numbered from 1, each with a context of its own.

    Args:
        app: what runs on every node.
        nodes: the config of each.
        altered: (node, answer) -> what the server gets in its place; None for nothing.

    Attributes:
        down: bytes sent to each node, in the order of the messages.
        up: bytes of their answers, 0 where one failed.
        answers: those to the last messages.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Iterable[dict[str, Any]],
        altered: Callable[[int, Message], Message | None] = lambda node, answer: answer,
    ) -> None:
        # that Flower sets where a ServerApp begins, 1.42
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app, self.altered = app, altered
        self.contexts = {
            k: Context(1, k, dict(config), RecordDict(), {}) for k, config in enumerate(nodes, 1)
        }
        self.down, self.up = list[tuple[int, int]](), list[tuple[int, int]]()
        self.answers = list[Message]()
        self._waiting = dict[str, Message]()

    def set_run(self, run: Any) -> None:
        """There is one."""

    @property
    def run(self) -> Any:
        """There is one."""
        return types.SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **options: Any) -> Message:
        """As every grid."""
        return Message(*args, **options)

    def get_node_ids(self) -> list[int]:
        """Of all."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let the nodes answer, one after the other; an exception is an error reply."""
        numbers, messages = list[str](), list(messages)
        if messages:
            self.answers = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.down.append((node, size(message.content)))
            try:
                # a copy, as over the wire: mods change what they are given
                answer = self.app(copy.deepcopy(message), self.contexts[node])
            except Exception as error:  # as Flower's own ClientApp process
                answer = Message(Error(2, str(error)), reply_to=message)
            self.up.append((node, 0 if answer.has_error() else size(answer.content)))
            changed = self.altered(node, answer)
            numbers.append(str(len(self.down)))
            if changed is not None:
                self.answers.append(changed)
                self._waiting[numbers[-1]] = changed
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these, each once."""
        return [self._waiting.pop(one) for one in message_ids if one in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """What the nodes answer."""
        return self.pull_messages(self.push_messages(messages))
