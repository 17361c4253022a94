"""Pictures of the pages, drawn at each build from the tables and results that are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from elastic_tf import TimingProfile, plots

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "profiling" / "tables" / "amd_epyc_2cores"
RESULTS = ROOT / "experiments" / "results"
MODELS = {
    "ResNet50": "resnet50",
    "MobileNetV2": "mobilenet_v2",
    "VGG16": "vgg16",
    "ViT-B/16": "vit_b16",
}
DEADLINES = {"finetune": "finetune", "deadline": "fit", "train": "the command train"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Draw before pages are read."""
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def draw(app: Sphinx) -> None:
    """All pictures, into a folder that is copied beside the styles of the output."""
    profiles = {
        label: TimingProfile.load(TABLES / f"{name}_224_b4.json") for label, name in MODELS.items()
    }
    time_model, deadline = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("time-model", "deadline")
    )
    device = time_model["device"]
    kept = {
        label: tuple([row[key] for row in deadline["data"][way]] for key in ("seconds", "taken"))
        for way, label in DEADLINES.items()
    }
    drawn = {
        "timing_bars": plots.timing_bars(profiles["ResNet50"]),
        "cost_of_depth": plots.cost_of_depth(profiles),
        "deadlines": plots.agreement(kept, x="seconds given", y="seconds taken", is_log=True),
        "predicted": plots.agreement(
            {name: (one["predicted"], one["measured"]) for name, one in time_model["data"].items()},
            x="predicted step time / full step",
            y="measured step time / full step",
            within=0.03,
            title=f"{device['name']}, {device['cores']} cores, {time_model['date']}",
        ),
    }
    drawn |= fleets()
    folder = Path(app.doctreedir) / "pictures"
    for name, picture in drawn.items():
        plots.save(picture, folder / f"{name}.png")
    app.config.html_static_path.append(str(folder))


def fleets() -> dict[str, Any]:
    """Accuracy of the fleet over seconds and over megabytes."""
    names = {
        "elastic": "elastic, {deadline} s",
        "fedavg": "FedAvg, all",
        "fedavg_fast": "FedAvg, fast half",
    }
    splits = {"iid": "", "dirichlet": ", Dirichlet 0.3"}
    runs = json.loads((RESULTS / "fleet.json").read_text(encoding="utf-8"))["runs"]
    curves = {names[one["way"]].format(**one) + splits[one["split"]]: one["curve"] for one in runs}
    shown = {
        "fleet_seconds": ("seconds", 1.0, "simulated seconds"),
        "fleet_bytes": ("bytes", 1e6, "MB, down and up of all devices"),
    }
    return {
        picture: plots.lines(
            {
                name: ([row[key] / unit for row in curve], [100 * row["accuracy"] for row in curve])
                for name, curve in curves.items()
            },
            x=label,
            y="test accuracy (%)",
            title="40 birds, 20 devices of four speeds, one seed",
        )
        for picture, (key, unit, label) in shown.items()
    }
