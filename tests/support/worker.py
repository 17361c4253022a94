"""One process of a training over several replicas; tests start it and read what it writes.

    python worker.py single|mirrored|multiworker OUT.npz [name=value ...]

Workers are told of each other by TF_CONFIG. The network has no batch normalisation of its
own: each replica would normalise with the statistics of its share. With `filtered` it has one that
all replicas compute together, in the middle of their traces, before kernels in that mode.
"""

import functools
import gc
import json
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from networks import CLASSES, IMAGE, MORE_OPTIMIZERS, L, crossentropy, images, mask_of

SAMPLES, BATCH = 16, 8
SECONDS = 180  # a process of a test that hangs is killed after so many


def main(kind: str, out: str, then_filtered: str = "", **options: Any) -> None:
    """Train, write weights, masks and importances; then the same of a filtered training."""
    strategy = make_strategy(kind)
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        model = et.ElasticModel.from_model(network("filtered" in options))
        optimizer = MORE_OPTIMIZERS["sgd" if "filtered" in options else "adam"]()
        micro = int(options.get("accumulate", 1))
        model.compile(optimizer, crossentropy(), accumulate=micro)
    x, y = (part[:SAMPLES] for part in images())
    train = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH // micro, drop_remainder=True)
    callback = elastic(model, train)
    callbacks: list[Any] = [callback]
    if "filtered" in options:
        kernels = mask_of(model, "conv1", "conv2") & [t.shape.rank == 4 for t in model.tensors]
        model.set_plan(et.Plan.full(len(model.tensors)).filtered(2, kernels))
        callbacks = []
    if "backup" in options:
        callbacks.append(tf.keras.callbacks.BackupAndRestore(options["backup"]))
    if "crash" in options:
        callbacks.append(Crash(int(options["crash"])))
    history = model.fit(train, epochs=6, verbose=0, callbacks=callbacks).history
    weights = model.get_weights()
    np.savez(
        out,
        loss=history["loss"],
        epochs=[record.epoch for record in callback.selections],
        masks=[record.mask for record in callback.selections],
        importance=[record.importance for record in callback.selections],
        graphs_left=graphs_left(model, train) if kind == "mirrored" and not options else 0,
        **{f"weight{k}": weight for k, weight in enumerate(weights)},
    )
    if then_filtered:
        main(kind, then_filtered, filtered=2)


class Crash(tf.keras.callbacks.Callback):
    """Ends the process at the start of an epoch, as a power failure does."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            os._exit(9)


def elastic(model: Any, train: tf.data.Dataset) -> et.ElasticCallback:
    """Selects by importance at every second epoch; every tensor costs the same."""
    ones = np.ones(len(model.tensors))
    profile = et.TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=5.0)
    return et.ElasticCallback(
        profile,
        rho=0.7,
        interval=2,
        probe=et.Probe(train, size=SAMPLES),
        control=et.Control(share=0.0),
    )


def network(is_normalised: bool = False) -> tf.keras.Model:
    """Two convolutions and a head: 6 tensors; and the 2 of a normalisation."""
    inputs = L.Input(IMAGE)
    x = L.Conv2D(3, 3, activation="tanh", name="conv1")(inputs)
    if is_normalised:
        x = L.BatchNormalization(synchronized=True)(x)
    x = L.Conv2D(4, 3, activation="silu", name="conv2")(x)
    return tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(L.Flatten()(x)))


@functools.cache
def make_strategy(kind: str) -> tf.distribute.Strategy:
    """The strategy of a process, with two logical devices where they belong to one process."""
    if kind == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind == "single":
        return tf.distribute.get_strategy()
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def graphs_left(model: Any, train: tf.data.Dataset) -> int:
    """Graphs of train functions that outlive their place among the kept ones."""
    graphs = []
    for name in ("head", "conv1"):
        model.set_mask(mask_of(model, name))
        model.fit(train, epochs=1, verbose=0)
        concrete = model.train_tf_function._list_all_concrete_functions()[0]
        graphs.append(weakref.ref(concrete.graph))
        del concrete
    model.compile("sgd", crossentropy())
    gc.collect()
    return sum(graph() is not None for graph in graphs)


def start(
    kind: str, out: Path, *, environment: dict[str, str] | None = None, **options: Any
) -> Any:
    """A child process that runs `main`."""
    pairs = [f"{name}={value}" for name, value in options.items()]
    return subprocess.Popen(
        [sys.executable, __file__, kind, str(out), *pairs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def cluster() -> list[dict[str, str]]:
    """The environments of two workers on free ports of this machine."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        hosts = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two)]
    task = {"type": "worker"}
    return [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": {**task, "index": k}})}
        for k in range(2)
    ]


def finish(*processes: Any) -> list[tuple[int, str]]:
    """Exit codes and outputs; what hangs, or waits for one that died, is killed."""
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, outputs)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:3], **dict(pair.split("=", 1) for pair in sys.argv[3:]))
