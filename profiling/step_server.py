"""Take training steps of a model when asked to: a helper process of settings_search.py.

Takes the arguments of profile_device.py. Prints "ready" when it is warm; for each line with a
number n on its input it runs n full steps and prints their seconds.
"""

from __future__ import annotations

import json
import sys

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
from profile_device import Settings, build

from elastic_tf.commandline import parse
from elastic_tf.stopwatch import as_batch, seconds
from elastic_tf.trace import StepFunction


def main() -> None:
    """Build, warm up, serve."""
    model, batch = build(parse(Settings, __doc__ or "", None))
    et.optimizers.build(model.optimizer, model.trainable_variables)
    run, data = StepFunction(model, np.ones(len(model.tensors), bool)), as_batch(*batch)
    run.warm_up(data)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([seconds(run, data) for _ in range(int(line))]), flush=True)


if __name__ == "__main__":
    main()
