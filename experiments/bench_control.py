"""How well a ratio is kept, in closed and in open loop.

The demo's network is adapted to the demo's other domain. Selected is by the gradient's magnitude,
which is positive for every tensor, so that the budget is used up. The profile is the one measured,
or one with half its forward pass, as if it came from a device that is faster there: it promises
savings that are not delivered, which shows what the loop corrects.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import demo
import tensorflow as tf
from measuring import measure_ratios

import elastic_tf as et
from elastic_tf.app.commands import harness
from elastic_tf.files import format_table

RHOS = (0.4, 0.5, 0.6, 0.7)
EPOCHS = 2
LOOPS = {"open": 0.0, "closed": 0.5}  # trainings of seconds must pay for tracing a full step, too
COLUMNS = "profile rho:.1f open:.3f closed:.3f by_callback:.3f closed_selections".split()


def main() -> dict[str, Any]:
    """Train by each profile to each rho in both loops; print a table."""
    tf.keras.utils.set_random_seed(demo.SEED)
    data = demo.other_domain()
    model = harness.compiled(demo.pre_trained(data), "adam", 1e-3)
    batch, weights = next(iter(data.train)), model.get_weights()
    head, measured = et.zoo.head_tensors(model), et.profile_model(model, *batch, repeats=20)
    halved = dataclasses.replace(
        measured, t_forward=measured.t_forward / 2, prefix=(), uncertainty=0.0
    )

    def trained(profile: et.TimingProfile, rho: float, share: float) -> et.ElasticCallback:
        harness.compiled(model, "adam", 1e-3)  # nothing of the training before stays
        model.set_weights(weights)
        callback = et.ElasticCallback(
            profile,
            rho=rho,
            interval=1,
            importance=et.importance.gradient_magnitude,
            probe=data.probe,
            required=head,
            control=et.Control(share=share),
        )
        model.fit(data.train, epochs=EPOCHS, verbose=0, callbacks=[callback])
        return callback

    rows, masks = [], []
    for name, profile in (("measured", measured), ("half forward", halved)):
        for rho in RHOS:
            row: dict[str, Any] = {"profile": name, "rho": rho}
            for loop, share in LOOPS.items():
                if profile.step_time(head) <= rho * profile.t_full:
                    selections = trained(profile, rho, share).selections
                    row[loop], row[f"{loop}_selections"] = len(masks), len(selections)
                    row["by_callback"] = selections[-1].achieved_ratio
                    masks.append(selections[-1].mask)
            rows.append(row)
    achieved = measure_ratios(model, batch, masks, repeats=12)
    for row in rows:
        row.update({loop: achieved[row[loop]] if loop in row else None for loop in LOOPS})
    print("Step time / full step time under the last selection, measured afterwards in turn:")
    print(format_table(rows, COLUMNS))
    return {"t_full": measured.t_full, "t_forward": measured.t_forward, "ratios": rows}
