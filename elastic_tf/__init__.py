"""Elastic training for Keras: choose at run time which tensors to train within a time budget.

`python -m elastic_tf --help` names what can be done without code.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

# TensorFlow reports a missing CUDA as errors at start-up. What really fails raises an exception.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow leaves oneDNN off on processors without AVX-512, where by it full steps of MobileNet,
# MobileNetV2, ResNet50, EfficientNetV2-B0 and ViT-Ti/16 took 0.75, 0.82, 0.42, 1.01 and 0.79.
if "tensorflow" not in sys.modules and platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from elastic_tf import federated as federated  # needs the extra fleet
    from elastic_tf.app import plots as plots
    from elastic_tf.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """A module that has not been loaded yet, or a public name, with all others."""
        if name == "plots":  # takes Matplotlib along
            return importlib.import_module("elastic_tf.app.plots")
        if importlib.util.find_spec(f"elastic_tf.{name}") is not None:
            return importlib.import_module(f"elastic_tf.{name}")
        if name == "__all__" or not name.startswith("_"):
            public = vars(importlib.import_module("elastic_tf.public"))
            found = {key: value for key, value in public.items() if not key.startswith("_")}
            globals().update(found, __all__=sorted({*found, "plots"}))
        if name not in globals():
            raise AttributeError(f"module 'elastic_tf' has no attribute {name!r}")
        return globals()[name]

    # All at once, but for the program: there each command loads what it needs, and `doctor` works
    # where TensorFlow does not. As `python -m elastic_tf`, its argv[0] is "-m" so far.
    if os.path.basename("".join(sys.argv[:1])) not in ("-m", "elastic-tf"):
        importlib.import_module("elastic_tf.stack")  # refuses a Keras that is not served
        __getattr__("__all__")
