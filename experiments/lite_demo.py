"""Adapts the network of experiments/lite_demo/ without TensorFlow; `make demo-lite` runs it.

It knows handwritten digits as they are; these are turned, inverted, paler and noisy.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
# As in an exported folder, where the modules lie beside the file: TensorFlow is never imported.
sys.path.insert(0, str(HERE.parent / "elastic_tf" / "lite"))

from trainer import Trainer  # noqa: E402


def main() -> None:
    """Evaluate, fit, evaluate."""
    began = time.perf_counter()
    with np.load(HERE / "lite_demo" / "digits.npz") as file:
        data = {name: file[name] for name in file}
    test = data["x_test"], data["y_test"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(HERE / "lite_demo")
        before = trainer.evaluate(*test)["accuracy"]
        state = Path(folder) / "demo.state"
        trainer.fit(data["x"], data["y"], epochs=8, seconds=40.0, state=state)
        after = trainer.evaluate(*test)["accuracy"]
    print(f"Accuracy on the other domain: {before:.1%} before, {after:.1%} after adapting")
    print(f"Seconds: {time.perf_counter() - began:.1f}")
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [one for one in status.read_text().splitlines() if one.startswith("VmHWM")]
        print(f"Memory of the process at most: {int(line.split()[1]) / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
