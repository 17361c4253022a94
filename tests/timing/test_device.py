"""What a time was measured on."""

from __future__ import annotations

import json
from pathlib import Path

import tensorflow as tf

from elastic_tf.timing.device import describe_device
from elastic_tf.timing.runtime import usable_cores


def test_describe_device_gives_json_values():
    device = describe_device()
    assert json.loads(json.dumps(device)) == device
    assert device["name"] and device["kind"] in ("cpu", "gpu")
    assert device["cores"] == usable_cores() >= 1 and device["tensorflow"] == tf.__version__


def test_describe_device_tells_the_threads_set(monkeypatch):
    # TensorFlow takes no other setting once it runs.
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 3)
    assert describe_device()["inter_op_threads"] == 3


def test_describe_device_names_the_board(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Raspberry Pi 4 Model B\0")
    assert describe_device()["name"] == "Raspberry Pi 4 Model B"
