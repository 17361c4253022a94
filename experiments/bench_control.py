"""How well budgets are kept: ratios in closed and in open loop, deadlines, with and without a load.

The demo's network is adapted to the demo's other domain. What is selected by in the ratios is the
gradient's magnitude, which is positive for every tensor, so that the budget is used up. The profile
is the one measured, or one with half its forward pass, as if it came from a device that is faster
there: it promises savings that are not delivered, which shows what the loop corrects. The load is a
process that keeps one core busy, started in the middle of a training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import demo
import tensorflow as tf
from measuring import measure_ratios

import elastic_tf as et
from elastic_tf.app.commands import harness
from elastic_tf.files import format_table

RHOS = (0.4, 0.5, 0.6, 0.7)
RATIO_EPOCHS = 2
DEADLINE_EPOCHS, DEADLINE_INTERVAL = 6, 2
SHARES = (0.6, 0.75, 0.9)  # deadlines, as parts of what full training takes by the profile
CONTROL = et.Control(share=0.5)  # trainings of seconds must pay for tracing a full step as well


def main(names: Sequence[str] = ("ratios", "deadlines")) -> dict[str, Any]:
    """Train, print two tables, or those named."""
    tf.keras.utils.set_random_seed(demo.SEED)
    data = demo.other_domain()
    bench = Bench(harness.compiled(demo.pre_trained(data), "adam", 1e-3), data)
    results: dict[str, Any] = {"t_full": bench.profile.t_full, "t_forward": bench.profile.t_forward}
    if "ratios" in names:
        results["ratios"] = bench.ratios()
        print("Step time / full step time under the last selection, measured afterwards in turn:")
        print(format_table(results["ratios"], RATIO_COLUMNS))
    if "deadlines" in names:
        cases = [(share, is_loaded) for is_loaded in (False, True) for share in SHARES]
        results["deadlines"] = [bench.deadline(*case) for case in cases]
        print("\nDeadlines, everything counted:")
        print(format_table(results["deadlines"], DEADLINE_COLUMNS))
    return results


class Bench:
    """One model, put back to its pre-trained weights and compiled anew before every training."""

    def __init__(self, model: et.ElasticModel, data: et.data.ImageData) -> None:
        self.model = model
        self.data = data
        self.batch = next(iter(data.train))
        self.weights = model.get_weights()
        self.head = et.zoo.head_tensors(model)
        self.profile = et.profile_model(model, *self.batch, repeats=20)
        self.foreign = dataclasses.replace(
            self.profile, t_forward=self.profile.t_forward / 2, prefix=(), uncertainty=0.0
        )

    def ratios(self) -> list[dict[str, Any]]:
        """Each rho in open and closed loop, by both profiles."""
        rows, masks = [], []
        for name, profile in (("measured", self.profile), ("half forward", self.foreign)):
            for rho in RHOS:
                row: dict[str, Any] = {"profile": name, "rho": rho}
                for loop, share in (("open", 0.0), ("closed", CONTROL.share)):
                    if profile.step_time(self.head) > rho * profile.t_full:
                        continue
                    callback, _ = self._train(
                        RATIO_EPOCHS,
                        profile,
                        rho=rho,
                        interval=1,
                        importance=et.importance.gradient_magnitude,
                        control=et.Control(share=share),
                    )
                    masks.append(callback.selections[-1].mask)
                    row[loop] = len(masks) - 1
                    row[f"{loop}_selections"] = len(callback.selections)
                    if loop == "closed":
                        row["by_callback"] = callback.selections[-1].achieved_ratio
                rows.append(row)
        measured = measure_ratios(self.model, self.batch, masks, repeats=12)
        for row in rows:
            for loop in ("open", "closed"):
                row[loop] = measured[row[loop]] if loop in row else None
        return rows

    def deadline(self, share: float, is_loaded: bool) -> dict[str, Any]:
        """One training with a deadline."""
        steps = DEADLINE_EPOCHS * self.data.steps_per_epoch
        asked = round(share * steps * self.profile.t_full * 1e-6, 1)
        before = int(self.model.optimizer.iterations)
        callback, seconds = self._train(
            DEADLINE_EPOCHS,
            self.profile,
            load_from=DEADLINE_EPOCHS // 2 if is_loaded else None,
            rho=et.Deadline(asked),
            interval=DEADLINE_INTERVAL,
        )
        history = self.model.history.history
        done = int(self.model.optimizer.iterations) - before
        return {
            "load": "from the middle" if is_loaded else "none",
            "asked": asked,
            "taken": seconds,
            "off": seconds / asked - 1.0,
            "left_out": steps - done,
            "first_rho": callback.selections[0].rho,
            "last_rho": callback.selections[-1].rho,
            "selections": len(callback.selections),
            "early": sum(record.reason == "deadline" for record in callback.selections),
            "accuracy": history["val_accuracy"][-1],
        }

    def _train(
        self,
        epochs: int,
        profile: et.TimingProfile,
        *,
        load_from: int | None = None,
        **options: Any,
    ) -> tuple[et.ElasticCallback, float]:
        """The callback of a training, and the seconds that `fit` took."""
        harness.compiled(self.model, "adam", 1e-3)  # nothing of the training before stays
        self.model.set_weights(self.weights)
        callback = et.ElasticCallback(profile, probe=self.data.probe, required=self.head, **options)
        with load() as begin:
            start = tf.keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: begin() if epoch == load_from else None
            )
            started = time.perf_counter()
            self.model.fit(
                self.data.train,
                epochs=epochs,
                validation_data=self.data.test,
                verbose=0,
                callbacks=[start, callback],
            )
            return callback, time.perf_counter() - started


@contextlib.contextmanager
def load() -> Iterator[Callable[[], None]]:
    """Gives a function that starts a process which keeps a core busy until the context ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield lambda: started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    finally:
        for process in started:
            process.kill()
            process.wait()


RATIO_COLUMNS = "profile rho:.1f open:.3f closed:.3f by_callback:.3f closed_selections".split()
DEADLINE_COLUMNS = (
    "load asked:.1f taken:.1f off:+.1% left_out first_rho:.2f last_rho:.2f selections early "
    "accuracy:.1%"
).split()
