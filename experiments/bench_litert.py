"""Training steps in LiteRT against TensorFlow's: steps a second, and memory of the process.

MobileNet 0.75 at 128 px in batches of 4, Adam, for each plan of a folder. Every measurement is a
process of its own, TensorFlow and LiteRT in turn; with `Samples` and with what the runner keeps on
the disk, and without both. Needs ai-edge-litert in the Python of `.venv-lite`, as
`make demo-lite` builds it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DEVICE = ROOT / ".venv-lite" / "bin" / "python"
IMAGES, BATCH, SIZE, CLASSES, SECONDS = 64, 4, 128, 40, 5.0
RHOS, ROUNDS = (0.2, 0.35, 0.5, 1.0), 3
COLUMNS = "rho:g kept:d tensorflow_steps:.1f tensorflow_mib:.0f litert_steps:.1f litert_mib:.0f"


def main() -> dict[str, Any]:
    """Export, measure in turn, print a table."""
    from elastic_tf.files import format_table

    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        subprocess.run([sys.executable, __file__, "export", folder], check=True)
        for k, rho in enumerate(RHOS):
            for kept in (True, False):
                found: dict[str, list[Any]] = {"tensorflow": [], "litert": []}
                for _ in range(ROUNDS):
                    for what, python in (("tensorflow", sys.executable), ("litert", str(DEVICE))):
                        command = [python, __file__, what, folder, str(k), str(int(kept))]
                        said = subprocess.run(command, check=True, capture_output=True, text=True)
                        found[what].append(json.loads(said.stdout.splitlines()[-1]))
                row: dict[str, Any] = {"rho": rho, "kept": kept}
                for what, pairs in found.items():
                    steps, memory = np.median(pairs, axis=0)
                    row.update({f"{what}_steps": float(steps), f"{what}_mib": float(memory)})
                rows.append(row)
                print(json.dumps(row), flush=True)
    print(format_table(rows, COLUMNS.split()))
    return {"rows": rows, "cases": {"images": IMAGES, "batch": BATCH, "size": SIZE}}


def images() -> tuple[np.ndarray, np.ndarray]:
    """Noise, as good as images for the clock."""
    x = np.random.default_rng(0).integers(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=np.uint8)
    return x, np.arange(IMAGES) % CLASSES


def report(seconds: list[float]) -> None:
    """Steps a second and the largest memory of this process, MiB."""
    status = Path("/proc/self/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("VmHWM")]
    print(json.dumps([1 / float(np.median(seconds)), int(line.split()[1]) / 1024]))


def compiled() -> Any:
    """The network, ready to be trained."""
    import elastic_tf as et
    from elastic_tf.app.commands import harness

    options = {"classes": CLASSES, "input_size": SIZE, "alpha": 0.75, "weights": None}
    return harness.compiled(et.zoo.build("mobilenet", **options), "adam", 4e-4)


def export(folder: str) -> None:
    """Write the folder."""
    from elastic_tf.app.export import litert

    litert(compiled(), folder, rhos=RHOS, batch_size=BATCH)


def tensorflow(folder: str, plan: str, kept: str) -> None:
    """`ElasticModel.fit` under a plan."""
    from measuring import StepTimes

    import elastic_tf as et

    model, (x, y) = compiled(), images()
    told = json.loads((Path(folder) / "model.json").read_text())
    mask = np.zeros(len(model.tensors), bool)
    mask[told["plans"][int(plan)]["tensors"]] = True
    model.set_mask(mask)
    times, began, seconds = StepTimes(), time.monotonic(), []
    data = et.Samples(x, y, batch_size=BATCH) if int(kept) else None
    while not seconds or time.monotonic() - began < SECONDS:
        if data is None:
            model.fit(x.astype(np.float32), y, batch_size=BATCH, verbose=0, callbacks=[times])
        else:
            model.fit(data, epochs=2, verbose=0, callbacks=[times])
        seconds += times.seconds[-IMAGES // BATCH + 2 :]  # the last epoch is on what is kept
    report(seconds[len(seconds) // 4 :])


def litert(folder: str, plan: str, kept: str) -> None:
    """The runner under a plan."""
    sys.path.insert(0, folder)
    from trainer import Trainer

    trainer, (x, y) = Trainer(folder), images()
    y, k, seconds = y.astype(np.int32), int(plan), []
    name = trainer.plans[k]["features"]
    source = list(trainer.features(name, x)) if name and int(kept) else None
    began, step = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        at, started = step % (IMAGES // BATCH), time.perf_counter()
        given = trainer.batch(x, y, slice(at * BATCH, at * BATCH + BATCH))
        if source:
            given["x"] = source[at]
        trainer.step(k, given, 1e-5, cached=source is not None)
        seconds.append(time.perf_counter() - started)
        step += 1
    report(seconds[len(seconds) // 4 :])


if __name__ == "__main__":
    {"export": export, "tensorflow": tensorflow, "litert": litert}[sys.argv[1]](*sys.argv[2:])
