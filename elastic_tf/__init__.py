"""Elastic training for Keras: choose at run time which tensors to train within a time budget.

`python -m elastic_tf --help` names what can be done without code.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

# TensorFlow reports a missing CUDA as errors at start-up. What really fails raises an exception.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.1.0"

__all__ = [
    "Backup",
    "Control",
    "Deadline",
    "ElasticCallback",
    "ElasticMixin",
    "ElasticModel",
    "Plan",
    "Probe",
    "Samples",
    "Selection",
    "SolveHead",
    "TimingProfile",
    "baselines",
    "data",
    "export",
    "fewshot",
    "finetune",
    "forecast",
    "importance",
    "load_delta",
    "memory",
    "optimizers",
    "plots",
    "profile_model",
    "save_delta",
    "select_tensors",
    "solve_head",
    "zoo",
]

if TYPE_CHECKING:
    from elastic_tf import federated as federated  # needs the extra fleet
    from elastic_tf import memory, plots
    from elastic_tf.app import data, export, zoo
    from elastic_tf.callback import ElasticCallback
    from elastic_tf.choose import importance
    from elastic_tf.choose.budget.forecast import forecast
    from elastic_tf.choose.budget.settings import Control, Deadline
    from elastic_tf.choose.importance.probe import Probe
    from elastic_tf.choose.selection.selector import Selection, select_tensors
    from elastic_tf.delta import load_delta, save_delta
    from elastic_tf.fine_tuning import finetune
    from elastic_tf.methods import baselines, fewshot
    from elastic_tf.model import ElasticModel
    from elastic_tf.plan import Plan
    from elastic_tf.timing.profile import TimingProfile
    from elastic_tf.timing.profiler import profile_model
    from elastic_tf.train import optimizers
    from elastic_tf.train.backup.recovery import Backup
    from elastic_tf.train.engine.mixin import ElasticMixin
    from elastic_tf.train.head.solve import SolveHead, solve_head
    from elastic_tf.train.inputs.samples import Samples
else:
    _MODULES = {
        "baselines": "methods.baselines",
        "data": "app.data",
        "export": "app.export",
        "federated": "federated",  # not in __all__: with the extra fleet alone
        "fewshot": "methods.fewshot",
        "importance": "choose.importance",
        "memory": "memory",
        "optimizers": "train.optimizers",
        "plots": "plots",
        "zoo": "app.zoo",
    }
    _HOMES = {
        "Backup": "train.backup.recovery",
        "Control": "choose.budget.settings",
        "Deadline": "choose.budget.settings",
        "ElasticCallback": "callback",
        "ElasticMixin": "train.engine.mixin",
        "ElasticModel": "model",
        "Plan": "plan",
        "Probe": "choose.importance.probe",
        "Samples": "train.inputs.samples",
        "Selection": "choose.selection.selector",
        "SolveHead": "train.head.solve",
        "TimingProfile": "timing.profile",
        "finetune": "fine_tuning",
        "forecast": "choose.budget.forecast",
        "load_delta": "delta",
        "profile_model": "timing.profiler",
        "save_delta": "delta",
        "select_tensors": "choose.selection.selector",
        "solve_head": "train.head.solve",
    }

    def __getattr__(name: str) -> Any:
        """A public name that has not been loaded yet."""
        if name not in _HOMES | _MODULES:
            raise AttributeError(f"module 'elastic_tf' has no attribute {name!r}")
        found = importlib.import_module(f"elastic_tf.{(_HOMES | _MODULES)[name]}")
        globals()[name] = getattr(found, name) if name in _HOMES else found
        return globals()[name]

    # All at once, but for the program: there each command loads what it needs, and `doctor` works
    # where TensorFlow does not. As `python -m elastic_tf`, its argv[0] is "-m" so far.
    if os.path.basename("".join(sys.argv[:1])) not in ("-m", "elastic-tf"):
        importlib.import_module("elastic_tf.stack")  # refuses a Keras that is not served
        for _name in set(__all__) - {"plots"}:  # which takes Matplotlib along
            __getattr__(_name)
