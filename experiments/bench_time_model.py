"""How well the time model predicts steps, and how well the budget asked for is met.

For each model: 24 random masks, their steps timed in turn with the full step, against what the
profile predicts, as a chain of t_dw and t_dy, and by the paper's formula (chain of op times as the
profiler gives them, backward pass taken for twice the forward pass). Then the masks that the
selector picks for four values of rho.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from measuring import (
    BATCH,
    CLASSES,
    MODELS,
    fresh,
    measure_ratios,
    noise,
    of_models,
    random_mask,
)

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.app.commands import harness
from elastic_tf.files import format_table
from elastic_tf.timing.attribution import attribute
from elastic_tf.timing.step import StepFunction
from elastic_tf.timing.trace import events, per_step
from elastic_tf.train.batches import as_batch

MASKS, ROUNDS, PROFILED = 24, 11, 5
RHOS = (0.4, 0.5, 0.6, 0.7)
EPOCH_STEPS = 1500  # the epoch that costs are compared with
PREDICTIONS = ("predicted", "chain", "paper")


def main(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure all models, or those named; print two tables."""
    # KerasHub has no version for Keras 2
    hub = [(name, 1.0, 0) for name in HUB if not stack.IS_KERAS2]
    results = of_models(measure, [*MODELS, *hub], names)
    print(format_table([summary(name, data) for name, data in results.items()], COLUMNS))
    print("\nAchieved ratio for the rho asked:")
    rows = [{"model": name, **data["achieved"]} for name, data in results.items()]
    print(format_table(rows, ["model", *(f"{rho}:.3f" for rho in RHOS)]))
    return results


def hub_resnet18() -> tuple[et.ElasticModel, tuple[Any, np.ndarray]]:
    """KerasHub's ResNet-18 with random weights, and a batch for it."""
    from keras_hub import models as hub

    backbone = hub.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[2, 2, 2, 2],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block",
        image_shape=(128, 128, 3),
    )
    network = hub.ResNetImageClassifier(backbone=backbone, num_classes=CLASSES)
    return harness.compiled(network, "sgdw", 1e-4), noise(128, seed=1)


def hub_bert() -> tuple[et.ElasticModel, tuple[Any, np.ndarray]]:
    """KerasHub's BERT of the size "small", with random weights, and 4 texts of 64 tokens."""
    from keras_hub import models as hub

    sizes = {"num_layers": 4, "num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048}
    backbone = hub.BertBackbone(vocabulary_size=30522, max_sequence_length=64, **sizes)
    network = hub.BertTextClassifier(backbone=backbone, num_classes=CLASSES, preprocessor=None)
    rng = np.random.default_rng(1)
    ids = rng.integers(1, 30522, (BATCH, 64))
    x = {"token_ids": ids, "segment_ids": ids * 0, "padding_mask": np.ones_like(ids)}
    return harness.compiled(network, "sgdw", 1e-4), (x, rng.integers(0, CLASSES, BATCH))


HUB = {"hub_resnet18": hub_resnet18, "hub_bert": hub_bert}


def measure(name: str, alpha: float, size: int) -> dict[str, Any]:
    """Predicted and measured ratios of one model."""
    if name in HUB:
        model, batch = HUB[name]()
    else:
        model, batch = fresh(name, size, alpha=alpha), noise(size, seed=1)
    rng = np.random.default_rng(1)
    started = time.perf_counter()
    profile = et.profile_model(model, *batch, repeats=15)
    profile_seconds = time.perf_counter() - started
    paper = paper_profile(model, batch, profile.count)

    masks = [random_mask(rng, profile.count) for _ in range(MASKS)]
    # random worth: what the selector picks differs in every part of the model
    worth = rng.exponential(size=(len(RHOS), profile.count))
    picked = [et.select_tensors(w, profile, rho) for w, rho in zip(worth, RHOS)]
    ratios = measure_ratios(
        model, batch, masks + [selection.mask for selection in picked], repeats=ROUNDS
    )
    epoch = EPOCH_STEPS * profile.t_full * 1e-6
    return {
        "tensors": profile.count,
        "sets": len(profile.conditions[1]),
        "share_attributed": profile.share_attributed,
        "t_forward": profile.t_forward,
        "t_full": profile.t_full,
        "uncertainty": profile.uncertainty,
        "profile_share_of_epoch": profile_seconds / epoch,
        "masks": [np.flatnonzero(mask) for mask in masks],
        "measured": ratios[:MASKS],
        "predicted": [profile.step_time(mask) / profile.t_full for mask in masks],
        "chain": [chain_time(profile, mask) / profile.t_full for mask in masks],
        "paper": [chain_time(paper, mask) / paper.t_full for mask in masks],
        "achieved": dict(zip(map(str, RHOS), ratios[MASKS:])),
    }


def chain_time(profile: et.TimingProfile, mask: np.ndarray) -> float:
    """Eq. (3) over t_dw and t_dy."""
    deepest = int(np.argmax(mask))
    return float(profile.t_forward + profile.t_dw[mask].sum() + profile.t_dy[deepest:].sum())


def paper_profile(model: et.ElasticModel, batch: tuple[Any, Any], count: int) -> et.TimingProfile:
    """Op times as they are, overlaps counted twice; a forward pass of half the backward pass."""
    run, data = StepFunction(model, np.ones(count, bool)), as_batch(*batch)
    work = attribute(run.untimed(data))
    run.warm_up(data)
    names, spans, _ = events(lambda: run(data), PROFILED)
    items = work.items(per_step(names, spans[:, 1] - spans[:, 0], PROFILED))
    return et.TimingProfile(sum(item.time for item in items) / 2, tuple(items), count)


COLUMNS = (
    "model tensors:d sets:d share:.1% error:.3f bias:+.3f worst:.3f chain:.3f paper:.3f profile:.1%"
).split()


def summary(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    measured = np.array(data["measured"])
    off = {key: np.array(data[key]) - measured for key in PREDICTIONS}
    return {
        "model": name,
        "tensors": data["tensors"],
        "sets": data["sets"],
        "share": data["share_attributed"],
        "error": np.abs(off["predicted"]).mean(),
        "bias": off["predicted"].mean(),
        "worst": np.abs(off["predicted"]).max(),
        "chain": np.abs(off["chain"]).mean(),
        "paper": np.abs(off["paper"]).mean(),
        "profile": data["profile_share_of_epoch"],
    }
