"""Pictures of the pages, drawn at each build from the tables and results that are committed."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[3]
TABLES = ROOT / "profiling" / "tables" / "amd_epyc_2cores"


def setup(app: Sphinx) -> dict[str, bool]:
    """Draw before pages are read; they stand beside the styles in the output."""
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def draw(app: Sphinx) -> None:
    """All pictures, into a folder of the build."""
    from elastic_tf import TimingProfile, plots

    folder = Path(app.doctreedir) / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    names = {"ResNet50": "resnet50", "MobileNetV2": "mobilenet_v2", "VGG16": "vgg16"}
    names["ViT-B/16"] = "vit_b16"
    profiles = {
        label: TimingProfile.load(TABLES / f"{name}_224_b4.json") for label, name in names.items()
    }
    pictures = {
        "timing_bars": plots.timing_bars(profiles["ResNet50"]),
        "step_parts": plots.step_parts(profiles),
        "cost_of_depth": plots.cost_of_depth(profiles),
    }
    for name, picture in pictures.items():
        plots.save(picture, folder / f"{name}.png")
    app.config.html_static_path.append(str(folder))
