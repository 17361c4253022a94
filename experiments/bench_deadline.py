"""What `et.forecast` says of two epochs of five networks, and what they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from measuring import columns, fresh, noise

import elastic_tf as et
from elastic_tf.files.table import format_table

MODELS = (  # name, width multiplier, input size in pixels
    ("mobilenet", 0.75, 128),
    ("mobilenet_v2", 1.0, 128),
    ("efficientnet_v2b0", 1.0, 96),
    ("resnet50", 1.0, 96),
    ("vit_ti16", 1.0, 96),
)
IMAGES, RHO, EPOCHS = 640, 0.5, 2
COLUMNS = columns("network training foretold:.1f taken:.1f ratio:.2f")


def main(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Print a table; of `names` there is "forecast" alone."""
    found = [forecast(*model, is_elastic) for model in MODELS for is_elastic in (True, False)]
    print(format_table(found, COLUMNS))
    return {"forecast": found}


def forecast(name: str, alpha: float, size: int, is_elastic: bool) -> dict[str, Any]:
    """What an elastic or a full training was thought to take, and took."""
    model = fresh(name, size, alpha=alpha, optimizer="adam")
    samples = et.Samples(*noise(size, IMAGES), batch_size=16)
    told = et.forecast(model, samples, rho=RHO, epochs=EPOCHS)
    foretold = (told.elastic if is_elastic else told.full).seconds
    callbacks = [et.ElasticCallback(rho=RHO), et.SolveHead()] if is_elastic else []
    started = time.perf_counter()
    model.fit(samples, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    taken = time.perf_counter() - started
    return {
        "network": name,
        "training": "elastic" if is_elastic else "full",
        "foretold": foretold,
        "taken": taken,
        "ratio": taken / foretold,
    }
