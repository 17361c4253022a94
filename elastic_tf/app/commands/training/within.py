"""`train --seconds`: what `finetune` does with arrays, on a run's images and in its directory."""

from __future__ import annotations

from typing import Any

import elastic_tf as et
from elastic_tf.app.commands.training import harness, recording
from elastic_tf.app.runs.run import Run
from elastic_tf.choose.budget.course import RATE, Course


def train(
    settings: Any,
    data: et.data.ImageData,
    profile: et.TimingProfile | None,
    run: Run,
    started: float,
) -> dict[str, Any]:
    """Train until so many seconds after `started`, write the weights, test them; the result."""
    if not data.fits_memory:
        raise ValueError(
            "`seconds` is for images that fit into a quarter of the memory. Received: "
            f"{data.train_count} images of {settings.input_size} pixels. Give `rho` instead."
        )
    verbose = 0 if settings.quiet else 2
    model = et.ElasticModel.from_model(harness.network(settings, data.classes, settings.weights))
    optimizer = et.optimizers.by_name(settings.optimizer, RATE)
    model.compile(optimizer, harness.loss(), metrics=["accuracy"], statistics="stored")
    clock = recording.TrainingClock()
    course = Course(
        model,
        data.samples(),
        data.validation,
        seconds=settings.seconds,
        started=started,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        profile=profile,
        verbose=verbose,
        callbacks=[clock, recording.Recorder(run, clock)],
    )
    try:
        course.run()
    except KeyboardInterrupt:
        if not course.keep():
            raise
        print(f"Interrupted after {len(run.history)} epochs; the best weights so far are kept.")
    model.save_weights(run.path / "model.weights.h5")
    course.profile.save(run.path / "profile.json")  # a run holds all that its pictures need
    head, kept = course.reached or (None, None)
    return {
        "method": "elastic",
        "class_names": data.class_names,
        **model.evaluate(data.test, verbose=verbose, return_dict=True),
        "head_accuracy": head,
        "validation_accuracy": kept,
        "training_seconds": sum(course.seconds.values()),
        "steps": sum(epoch["steps"] for epoch in run.history),
        "epochs": len(run.history),
        "predicted_ratio": course.share,
        "seconds": course.seconds,
    }
