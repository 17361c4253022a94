"""Take training steps of a model when asked to: a child process of settings_search.

Takes the arguments of the command `profile`. Prints "ready" when it is warm; for each line with a
number n on its input it runs n full steps and prints their seconds.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

import numpy as np

import elastic_tf as et
from elastic_tf.commands.commandline import parse
from elastic_tf.commands.profiling.options import Settings
from elastic_tf.commands.profiling.work import build
from elastic_tf.engine.batches import as_batch
from elastic_tf.timing.stopwatch import seconds
from elastic_tf.timing.trace import StepFunction


def main() -> None:
    """Build, warm up, serve."""
    answers = output_of_its_own()
    model, batch = build(parse(Settings, __doc__ or "", None))
    et.optimizers.build(model.optimizer, model.trainable_variables)
    run, data = StepFunction(model, np.ones(len(model.tensors), bool)), as_batch(*batch)
    run.warm_up(data)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        times = [seconds(run, data) for _ in range(int(line))]
        print(json.dumps(times), file=answers, flush=True)


def output_of_its_own() -> TextIO:
    """The process's output, for answers alone: what libraries print goes to the errors instead."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    main()
