"""Birds on 20 devices of four speeds: elastic rounds and FedAvg, by simulated seconds and bytes.

    python experiments/fleet.py --data FOLDER --weights FILE --out experiments/results/fleet.json

The devices are of speed 1, 1/2, 1/4 and 1/8, five of each, with the images of 40 species shared out
evenly (iid) or by a Dirichlet distribution of 0.3 for each species (dirichlet). Messages pass
through the package's client functions and strategies of Flower in this process. A second is
simulated: a client's steps, times what its plan is foretold to take on a device of speed 1, times
its slow-down, and its bytes as Flower counts them at 20 Mbit/s each way. A round ends with its
slowest client. A device of speed 1 takes `STEPS` seconds for a full step of 16 images.

All begin with the solved head, federated, whose sums count as the first round.

* elastic: rounds with a deadline for all; each device trains the last tensors behind the cut that
  it can; float16 down and int8 up; at the end the head is solved again.
* fedavg: every tensor of all devices by Flower's FedAvg, which waits for the slowest.
* fedavg_fast: the same without the devices of speed 1/4 and 1/8.

The network before the cut is the same on all devices, and what it makes of each image is computed
once, which counts. 200 test images serve to choose each way's rate; accuracy is that of the others.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import first_second
import numpy as np
import tensorflow as tf
from flower_here import Here
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import elastic_tf as et
from elastic_tf import federated
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.choose.budget.prior import prior_profile
from elastic_tf.files import format_table, write_json

CLIENTS, BATCH = 20, 16
SLOW = (1.0, 2.0, 4.0, 8.0)  # device k is of the speed 1 / SLOW[k % 4]
# s: of MobileNet 0.75, 128 px, two idle cores of an x86 server; of all, and foretold behind the cut
STEPS = {True: 0.24, False: 0.114}
BYTES_A_SECOND = 2.5e6  # each way
CUT = "conv_pw_7_relu"  # before which nothing is trained
CHOOSING = 200  # test images that choose the rates
WAYS = ("elastic", "fedavg", "fedavg_fast")
COLUMNS = ("way", "split", "seed", "best:.1%", "seconds:.0f:simulated s", "megabytes:.0f:MB")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Images, network, rounds and seeds."""

    data: Path = option(help="a folder with train/CLASS and test/CLASS")
    weights: Path = option(help="file of the base's weights, without top")
    out: Path = option(Path("runs/fleet.json"), help="JSON file of the results; runs in it stay")
    ways: str = option(",".join(WAYS), help="which, by commas")
    splits: str = option("iid,dirichlet", help="which, by commas")
    seeds: str = option("0,1,2", help="which, by commas")
    rounds: int = option(12, help="of training")
    seconds: float = option(3.2, help="of an elastic round")
    rates: str = option("5e-5", help="by commas; more than one: each is tried")
    epochs: int = option(1, help="passes over a client's images in a round")


class Fleet:
    """The network, whole and behind the cut, its times, and all images."""

    def __init__(self, settings: Settings) -> None:
        tf.keras.utils.set_random_seed(0)
        base = first_second.network("mobilenet", settings.weights)
        self.images, self.labels = first_second.images(settings.data / "train")
        x, self.wanted = first_second.images(settings.data / "test")
        front = tf.keras.Model(base.input, base.get_layer(CUT).output)
        tail = tf.keras.Model(front.output, base.output)
        ends = {True: base, False: tail}
        self.models = {k: first_second.with_head(one, 40, 1e-3) for k, one in ends.items()}
        self.kept = front.predict(self.images, batch_size=64, verbose=0)
        self.tests = {True: x, False: front.predict(x, batch_size=64, verbose=0)}
        inputs = {True: self.images, False: self.kept}
        self.profiles = {k: quickest(one, inputs[k][:BATCH]) for k, one in self.models.items()}
        # seconds of a device of speed 1 to a second of this machine
        self.slow = {k: 1e6 * STEPS[k] / one.t_full for k, one in self.profiles.items()}
        self.initial = {whole: model.get_weights() for whole, model in self.models.items()}

    def forward_seconds(self, whole: bool) -> float:
        """Of a batch on a device of speed 1."""
        return 1e-6 * self.slow[whole] * self.profiles[whole].t_forward

    def samples(self, rows: np.ndarray, whole: bool, seed: int) -> et.Samples:
        """Of a client."""
        x = self.images if whole else self.kept
        # nothing is kept, so that fit is traced once for all clients
        return et.Samples(
            x[rows], self.labels[rows], batch_size=min(BATCH, len(rows)), seed=seed, memory=0
        )

    def accuracy(self, arrays: ArrayRecord, whole: bool) -> dict[str, float]:
        """Of the server's weights, on the images that choose and on the others."""
        model = self.models[whole]
        model.set_weights(arrays.to_numpy_ndarrays())
        said = model.predict(self.tests[whole], batch_size=64, verbose=0).argmax(axis=1)
        model.set_weights(self.initial[whole])  # which every device has
        order = np.random.default_rng(0).permutation(len(said))
        right = (said == self.wanted)[order]
        parts = {"choosing": right[:CHOOSING], "accuracy": right[CHOOSING:]}
        return {name: float(part.mean()) for name, part in parts.items()}


def quickest(model: Any, x: np.ndarray) -> et.TimingProfile:
    """The foretold times while the machine did the least else."""
    return min((prior_profile(model, x) for _ in range(3)), key=lambda one: one.t_forward)


def shared_out(labels: np.ndarray, split: str, seed: int) -> list[np.ndarray]:
    """Numbers of the images of each client."""
    rng = np.random.default_rng(seed)
    if split == "iid":
        return [np.sort(one) for one in np.array_split(rng.permutation(len(labels)), CLIENTS)]
    while True:
        parts: list[list[int]] = [[] for _ in range(CLIENTS)]
        for species in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == species))
            ends = np.cumsum(rng.dirichlet([0.3] * CLIENTS))[:-1] * len(rows)
            for part, given in zip(parts, np.split(rows, ends.astype(int))):
                part.extend(given)
        if min(map(len, parts)) >= 5:
            return [np.sort(part) for part in parts]


def run(fleet: Fleet, settings: Settings, way: str, split: str, seed: int, rate: float) -> Any:
    """One training."""
    whole, began = way != "elastic", time.perf_counter()
    parts = shared_out(fleet.labels, split, seed)
    nodes = [k for k in range(CLIENTS) if way != "fedavg_fast" or SLOW[k % 4] <= 2.0]
    samples = {k: fleet.samples(parts[k], whole, seed) for k in nodes}
    model, app = fleet.models[whole], ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        k = context.node_config["device"]
        options = {"profile": fleet.profiles[whole], "slowdown": SLOW[k % 4] * fleet.slow[whole]}
        return federated.train(message, context, model, samples[k], **options)

    @app.train("head")
    def head(message: Any, context: Any) -> Any:
        rows = parts[context.node_config["device"]]
        return federated.head(message, context, fleet.models[False], fleet.samples(rows, False, 0))

    grid, spent = Here(app, [{"device": k} for k in nodes]), {"seconds": 0.0, "bytes": 0}
    curve: list[dict[str, float]] = []

    def account(computing: dict[int, float]) -> None:
        """Add a round: its slowest client, and the bytes of all."""
        sent = collections.Counter[int]()
        for node, count in (*grid.down, *grid.up):
            sent[node] += count
        spent["seconds"] += max(
            computing.get(node, 0.0) + count / BYTES_A_SECOND for node, count in sent.items()
        )
        spent["bytes"] += sum(sent.values())
        grid.down.clear()
        grid.up.clear()

    def note(number: int, arrays: ArrayRecord) -> None:
        curve.append({"round": number, **spent, **fleet.accuracy(arrays, whole)})
        print(way, split, seed, rate, curve[-1], flush=True)

    def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number:
            said = {one.metadata.src_node_id: one.content["metrics"] for one in grid.answers}
            account({node: one["planned-seconds"] for node, one in said.items()})
        if not number or not whole or number % 2 or number == settings.rounds:
            note(number, arrays)
        return MetricRecord({"accuracy": curve[-1]["accuracy"]})

    strategy: Any = FedAvg(fraction_evaluate=0.0)
    config: dict[str, Any] = {"rate": rate, "epochs": settings.epochs, "dense": True}
    config["rounds"] = settings.rounds  # over which the rate falls
    values = list(fleet.initial[whole])
    tail = {"down": "float16"}
    keeper = federated.FedElastic(fraction_evaluate=0.0)

    def solved(known: ArrayRecord, forward: float) -> ArrayRecord:
        """The head of all clients, with the seconds of a forward pass of a batch."""
        found = federated.solve_head(keeper, grid, known, ConfigRecord(tail)).arrays
        images = {n: len(parts[k]) * SLOW[k % 4] for n, k in enumerate(nodes, 1)}
        account({n: forward / BATCH * count for n, count in images.items()})
        return found

    # what comes before the cut is computed now, too
    first = solved(ArrayRecord(fleet.initial[False]), fleet.forward_seconds(True))
    values[-2:] = first.to_numpy_ndarrays()[-2:]
    if not whole:
        strategy = keeper
        config |= {"dense": False, "seconds": settings.seconds, "dtype": "int8", **tail}
    options = {"train_config": ConfigRecord(config), "evaluate_fn": evaluated}
    result = strategy.start(grid, ArrayRecord(values), settings.rounds, **options)
    if not whole:
        last = solved(result.arrays, fleet.forward_seconds(False))
        note(settings.rounds + 1, last)
    return {
        "epochs": settings.epochs,
        "deadline": None if whole else settings.seconds,
        "best": max(one["accuracy"] for one in curve),
        "choosing": max(one["choosing"] for one in curve),
        "seconds": curve[-1]["seconds"],
        "megabytes": curve[-1]["bytes"] / 1e6,
        "took": time.perf_counter() - began,
        "curve": curve,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in every way; print and write what came out."""
    settings = parse(Settings, __doc__ or "", arguments)
    fleet = Fleet(settings)
    given = {**dataclasses.asdict(settings), "data": settings.data.name}
    told = {
        "settings": {k: str(v) for k, v in given.items() if k not in ("weights", "out")},
        "clients": CLIENTS,
        "slow_downs": SLOW,
        "full_step_seconds": STEPS[True],
        "tail_step_seconds": STEPS[False],
        "tail_forward_seconds": fleet.forward_seconds(False),
        "bytes_a_second": BYTES_A_SECOND,
        "cut": CUT,
    }
    found: list[dict[str, Any]] = []
    if settings.out.exists():
        found = json.loads(settings.out.read_text("utf-8"))["runs"]
    lists = (settings.seeds, settings.splits, settings.ways, settings.rates)
    for seed, split, way, rate in itertools.product(*(one.split(",") for one in lists)):
        known = {"way": way, "split": split, "seed": int(seed), "rate": float(rate)}
        if not any(known.items() <= one.items() for one in found):
            found.append(known | run(fleet, settings, **known))
            write_json(settings.out, told | {"runs": found})
    print(format_table(found, COLUMNS))


if __name__ == "__main__":
    main()
