"""What a time was measured on, and under which settings."""

import json
import os
import platform
from pathlib import Path

import pytest
import tensorflow as tf

from elastic_tf.timing import describe_device, usable_cores


def test_threads_of_the_environment_are_told(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "3")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "many")
    device = describe_device()
    assert device["inter_op_threads"] == 3
    assert device["intra_op_threads"] == tf.config.threading.get_intra_op_parallelism_threads()


def test_describe_device_gives_json_values():
    device = describe_device()
    assert json.loads(json.dumps(device)) == device
    assert device["name"] and device["kind"] in ("cpu", "gpu")
    assert device["cores"] == usable_cores() >= 1 and device["tensorflow"] == tf.__version__


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="of x86 processors")
def test_onednn_is_on_unless_the_user_leaves_it_off():
    assert describe_device()["onednn"] == (os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1")


def test_describe_device_names_the_board(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Raspberry Pi 4 Model B\0")
    assert describe_device()["name"] == "Raspberry Pi 4 Model B"
