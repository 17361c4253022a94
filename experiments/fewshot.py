"""A few images of each new class: what adapting reaches in the same seconds and the same memory.

Tasks of various numbers of classes and images are drawn from classes that nothing was chosen on;
all methods adapt to the same ones, from the same weights. The learning rate and the number of steps
of each method, and what SparseUpdate trains, are found on tasks of other classes. Each task is
written at once: the same command goes on, and adds tasks where more of them are asked for.

    python experiments/fewshot.py --case gtsrb --assets FOLDER --out experiments/results/NAME.json
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from related import tinytrain

from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.compare import interval
from elastic_tf.choose.problem import Choices
from elastic_tf.choose.solvers import best_choices
from elastic_tf.files import format_table, write_text
from elastic_tf.methods.kernels import Budgets, KernelCosts, with_best

L = tf.keras.layers
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
COMPUTE = 0.15  # of a backward pass: the paper's budget
# Which of the choices for kernels (1, n) pay for what each tensor (N, 1) costs: to keep its inputs,
# to keep what its results need, and to pass the gradient through it.
PAYS = (np.equal, np.greater_equal, np.greater)
WEIGHTS = 16  # bytes of a trained number, its gradient and Adam's two
FEWEST = 3  # steps
REFERENCE = "TinyTrain"  # whose seconds count
COLUMNS = (
    "method rate steps accuracy:.1% interval:.1% better:.1% better_interval:.1% seconds:.2f "
    "selection:.3f memory:.2f kept:.1f macs:.1%"
).split()


class Offer(NamedTuple):
    """A way to train a tensor: the part of it that is trained, and what that is worth."""

    tensor: int
    mode: str
    share: float
    worth: float


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure."""

    case: str = option(help="set of images", choices=("gtsrb", "omniglot"))
    assets: Path = option(help="folder with data/ and weights/")
    out: Path = option(help="JSON file for the result")
    memory: float = option(help="MiB that training an image may take, as the paper counts")
    episodes: int = option(200, help="tasks that the methods are compared on")
    tried: int = option(4, help="tasks on which rates, steps and choices are found")
    steps: int = option(40, help="of TinyTrain; the others get as many as take as long")
    meta_steps: int = option(0, help="of meta-training before; 0: none")
    meta_rate: float = option(1e-3, help="highest rate of meta-training, of Adam")
    threads: int | None = option(None, help="of TensorFlow")


def main() -> None:
    """Meta-train, find rates, steps and choices, compare."""
    settings = parse(Settings, __doc__ or "", None)
    if settings.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
    tf.keras.utils.set_random_seed(0)
    network, training, validation, test = CASES[settings.case](settings.assets)
    net = et.fewshot.ProtoNet.of(network)
    if settings.meta_steps:
        meta = et.fewshot.ProtoNet(net.network, bn_training=settings.case == "omniglot")
        rate = et.optimizers.cosine(settings.meta_rate, settings.meta_steps, warm_up=0.05)
        tasks = tinytrain.episodes(training, (5, 10), shots=5, query=5, seed=0)
        adam = et.optimizers.adam(rate)
        tinytrain.meta_train(
            meta, tasks, epochs=1, steps=settings.meta_steps, optimizer=adam, verbose=0
        )
    limits = {"way": (5, 10), "support_limit": 50}
    trials = tinytrain.episodes(validation, seed=1, **limits)
    tasks = tinytrain.episodes(test, seed=2, **limits)
    result = json.loads(settings.out.read_text()) if settings.out.exists() else {}
    if not result:
        told = {**dataclasses.asdict(settings), "assets": None, "out": None}
        found = {"settings": told, **prepared(net, trials, settings)}
        result = {**found, "tasks": {}}
    options = methods(net, result["sparse"], settings)
    done = len(result["tasks"][REFERENCE]["accuracy"]) if result["tasks"] else 0
    for index in range(done, settings.episodes):
        task, row = tasks[index], {}
        for name, given in options.items():
            chosen = result["chosen"][name]
            row[name] = one(net, task, chosen["rate"], chosen["steps"], given)
        for name, values in row.items():
            for key, value in values.items():
                result["tasks"].setdefault(name, {}).setdefault(key, []).append(value)
        write_text(settings.out, json.dumps(result) + "\n")
        if index % 10 == 9:
            print(format_table(summary(result), COLUMNS), flush=True)
    result["methods"] = summary(result)
    write_text(settings.out, json.dumps(result) + "\n")
    print(format_table(result["methods"], COLUMNS), flush=True)


def methods(
    net: et.fewshot.ProtoNet, sparse: Mapping[str, Any], settings: Settings
) -> dict[str, dict[str, Any]]:
    """The options of `adapt` for each method."""
    kernels = np.flatnonzero(net.costs.macs).tolist()
    within = {"memory": round(settings.memory * 2**20), "compute": COMPUTE}
    paper = {**within, "inspect": 0.4 if len(kernels) > 10 else 1.0}
    return {
        "nothing": {"steps": 0},
        "the last kernel": {**within, "inspect": 1e-9},
        "SparseUpdate": {"plan": et.Plan.from_json(sparse) if sparse else None},
        REFERENCE: paper,
        "TinyTrain, new images in each step": {**paper, "views": None},
        "everything, beyond the memory": {"plan": et.Plan.full(len(net.model.tensors))},
    }


def prepared(
    net: et.fewshot.ProtoNet, trials: tinytrain.Episodes, settings: Settings
) -> dict[str, Any]:
    """What SparseUpdate trains, and each method's rate and steps, by tasks of other classes."""
    every = methods(net, {}, settings)
    reference, sparse = every[REFERENCE], et.Plan.full(len(net.model.tensors))
    chosen: dict[str, dict[str, float]] = {}
    for name in (REFERENCE, *(one for one in every if one != REFERENCE)):
        given = every[name]
        if name == "SparseUpdate":
            sparse = sparse_update(net, trials, chosen[REFERENCE]["rate"], settings)
            given = {"plan": sparse}
        if name == "nothing":
            chosen[name] = {"rate": RATES[0], "steps": 0}
            continue
        best: dict[str, float] = {"accuracy": -1.0}
        steps = steps_of(net, trials, given, reference, settings)
        for rate in RATES:
            runs = [one(net, trials[k], rate, steps, given) for k in range(settings.tried)]
            loss = float(np.mean([run["loss"] for run in runs]))
            accuracy = float(np.mean([run["accuracy"] for run in runs]))
            print(f"{name}, {steps} steps, {rate:g}: {accuracy:.1%}, {loss:.3f}")
            if (accuracy, -loss) > (best["accuracy"], -best.get("loss", 0.0)):
                best = {"rate": rate, "steps": steps, "loss": loss, "accuracy": accuracy}
        chosen[name] = best
        print(f"{name}: {best}", flush=True)
    return {"sparse": sparse.to_json(), "chosen": chosen}


def one(
    net: et.fewshot.ProtoNet,
    task: tinytrain.Episode,
    rate: float,
    steps: int,
    given: Mapping[str, Any],
) -> dict[str, float]:
    """Adapt to a task and ask its queries; the network's weights are as before."""
    weights = net.model.get_weights()
    given = {"steps": steps, **given}
    found = et.fewshot.adapt(net, task.support, task.support_labels, learning_rate=rate, **given)
    said = found.probabilities(task.query)
    net.model.set_weights(weights)
    right = np.take_along_axis(said, task.query_labels[:, None], 1)
    values = {
        "accuracy": np.mean(said.argmax(1) == task.query_labels),
        "loss": -np.log(np.maximum(right, 1e-7)).mean(),
        "seconds": found.seconds,
        "selection": found.selection_seconds,
        "memory": found.memory / 2**20,
        "kept": found.kept / 2**20,
        "macs": found.macs / net.costs.full_macs,
    }
    return {key: round(float(value), 4) for key, value in values.items()}


def steps_of(
    net: et.fewshot.ProtoNet,
    trials: tinytrain.Episodes,
    given: Mapping[str, Any],
    reference: Mapping[str, Any],
    settings: Settings,
) -> int:
    """Steps that take as long as those of the reference, all of adapting counted but tracing."""
    if given is reference:
        return settings.steps
    found, few, many = [], settings.steps // 4, settings.steps

    def timed(given: Mapping[str, Any], steps: int, task: tinytrain.Episode) -> float:
        return min(one(net, task, RATES[0], steps, given)["seconds"] for _ in range(2))

    for k in range(3):
        task = trials[k]
        one(net, task, RATES[0], 1, reference)  # traces
        whole = timed(reference, many, task)
        one(net, task, RATES[0], 1, given)
        short, long = timed(given, few, task), timed(given, many, task)
        each = max(long - short, 1e-6) / (many - few)
        found.append((whole - short) / each + few)
    return max(round(float(np.median(found))), FEWEST)


def sparse_update(
    net: et.fewshot.ProtoNet, trials: tinytrain.Episodes, rate: float, settings: Settings
) -> et.Plan:
    """One plan for all tasks: the kernels whose training alone lowered the queries' loss most.

    Each of the last kernels is trained alone, by each share of its channels, on some tasks; the sum
    of what that gained is highest within both budgets. The channels are those of most Fisher
    information on these tasks. The paper's search for the sum is evolutionary, ours is exact.

    Source: Lin et al., On-Device Training Under 256KB Memory, NeurIPS 2022, Sec. 3.2, as a baseline
    of Kwon et al., TinyTrain, ICML 2024.
    """
    costs, offers = net.costs, list[Offer]()
    kernels = np.flatnonzero(costs.macs).tolist()
    kernels = kernels[-max(1, round((0.4 if len(kernels) > 10 else 1.0) * len(kernels))) :]
    budgets = Budgets.of(costs, round(settings.memory * 2**20), COMPUTE)
    worth = {k: np.zeros(costs.channels[k]["exact"]) for k in kernels}
    none = et.Plan(np.zeros(len(costs.sizes), int))

    def noted(found: Mapping[int, np.ndarray], *_: Any) -> et.Plan:
        for k in kernels:
            worth[k] += found[k]
        return et.Plan.full(len(costs.sizes))

    tasks = [trials[k] for k in range(2)]
    for task in tasks:
        one(net, task, rate, 1, {"rule": noted, "inspect": 1.0})
    before = np.mean([one(net, task, rate, 0, {})["loss"] for task in tasks])
    for k in kernels:
        for name, count in costs.channels[k].items():
            plan = with_best(none, k, name, worth[k], costs)
            shares = costs.shares(plan)
            if costs.memory(shares) > budgets.memory or costs.backward_macs(shares) > budgets.macs:
                continue
            runs = [one(net, task, rate, settings.steps, {"plan": plan}) for task in tasks]
            gain = float(before - np.mean([run["loss"] for run in runs]))
            if gain > 0.0:
                offers.append(Offer(k, name, count / costs.channels[k]["exact"], gain))
    plan = none
    for offer in search(offers, costs, budgets):
        plan = with_best(plan, offer.tensor, offer.mode, worth[offer.tensor], costs)
    return plan


def search(offers: Sequence[Offer], costs: KernelCosts, budgets: Budgets) -> list[Offer]:
    """The offers of most worth together within both budgets, to a gap of 0.1 %.

    Args:
        offers: those of one tensor beside each other.
        costs: of the network's tensors.
        budgets: most memory and most multiply-adds.
    """
    kernel = np.array([offer.tensor for offer in offers])
    share = np.array([offer.share for offer in offers])
    weights = WEIGHTS * share * costs.sizes[kernel]
    count = len(costs.sizes)
    every, behind = np.arange(count)[:, None], kernel[None]
    # paid by each choice alone, by all of a kernel, by what lies before a kept result or a kernel
    member = np.vstack([np.eye(len(kernel), dtype=bool), *(f(every, behind) for f in PAYS)])
    macs = [share * costs.macs[kernel], np.zeros(2 * count), costs.macs]
    saved = [weights, costs.inputs, costs.kept, np.zeros(count)]
    alone = [weights, np.zeros(3 * count)]
    cost = np.stack([np.concatenate(part) for part in (macs, saved, alone)], axis=1)
    room = np.array([budgets.macs, budgets.memory, budgets.memory - costs.peak])
    room = np.minimum(room, 2.0 * cost.sum(axis=0) + 1.0)  # a budget may be infinite
    worth, none = np.array([offer.worth for offer in offers]), np.zeros(len(kernel), bool)
    found = best_choices(Choices(kernel, member, cost), worth, room, none).chosen
    return [offer for offer, is_chosen in zip(offers, found) if is_chosen]


def summary(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Means over the tasks, with half of their 95 % intervals; seconds are medians."""
    rows, tasks = [], result["tasks"]
    for name, values in tasks.items():
        of = {key: np.array(part) for key, part in values.items()}
        accuracy = of["accuracy"]
        better = np.array(tasks[REFERENCE]["accuracy"]) - accuracy
        rows.append(
            {
                "method": name,
                "rate": result["chosen"][name]["rate"],
                "steps": result["chosen"][name]["steps"],
                "tasks": len(accuracy),
                **dict(zip(("accuracy", "interval"), interval(accuracy))),
                **dict(zip(("better", "better_interval"), interval(better))),
                "seconds": float(np.median(of["seconds"])),
                "selection": float(np.median(of["selection"])),
                **{key: float(of[key].mean()) for key in ("memory", "kept", "macs")},
            }
        )
    return rows


def gtsrb(assets: Path) -> tuple[Any, ...]:
    """MobileNet 0.75 from ImageNet's weights; of the signs 13 to meta-train, 8 to choose, 22."""
    data = np.load(assets / "data/gtsrb_fewshot/gtsrb43x20_64.npz")
    weights = assets / "weights/mobilenet_0.75_224_no_top.weights.h5"
    options = {"classes": 2, "input_size": 64, "alpha": 0.75, "weights": weights}
    images, labels = data["x"], data["y"].astype(int)
    order = np.random.default_rng(0).permutation(43)
    parts = (np.isin(labels, some) for some in (order[:13], order[13:21], order[21:]))
    return et.zoo.build("mobilenet", **options), *((images[part], labels[part]) for part in parts)


def omniglot(assets: Path) -> tuple[Any, ...]:
    """Four convolutions from random weights; five alphabets to meta-train, one to choose, two."""
    data = np.load(assets / "data/omniglot/omniglot_small_28.npz")
    images, labels = data["images"][..., None] / np.float32(255), data["character"].astype(int)
    alphabet = data["character_alphabet"][labels]
    inputs = x = L.Input((28, 28, 1))
    for _ in range(4):
        x = L.Conv2D(32, 3, padding="same", use_bias=False)(x)
        x = L.MaxPool2D()(L.ReLU()(L.BatchNormalization()(x)))
    parts = (alphabet < 5, alphabet == 5, alphabet > 5)
    network = tf.keras.Model(inputs, L.Flatten()(x))
    return (network, *((images[part], labels[part]) for part in parts))


CASES = {"gtsrb": gtsrb, "omniglot": omniglot}

if __name__ == "__main__":
    main()
