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

_MODULES = {
    "baselines": "methods.baselines",
    "data": "app.data",
    "export": "app.export",
    "federated": "federated",  # with the extra fleet alone
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
__all__ = sorted({*_HOMES, *_MODULES} - {"federated"})

if TYPE_CHECKING:
    from elastic_tf import federated as federated  # needs the extra fleet
    from elastic_tf import memory as memory
    from elastic_tf import plots as plots
    from elastic_tf.app import data as data
    from elastic_tf.app import export as export
    from elastic_tf.app import zoo as zoo
    from elastic_tf.callback import ElasticCallback as ElasticCallback
    from elastic_tf.choose import importance as importance
    from elastic_tf.choose.budget.forecast import forecast as forecast
    from elastic_tf.choose.budget.settings import Control as Control
    from elastic_tf.choose.budget.settings import Deadline as Deadline
    from elastic_tf.choose.importance.probe import Probe as Probe
    from elastic_tf.choose.selection.selector import Selection as Selection
    from elastic_tf.choose.selection.selector import select_tensors as select_tensors
    from elastic_tf.delta import load_delta as load_delta
    from elastic_tf.delta import save_delta as save_delta
    from elastic_tf.fine_tuning import finetune as finetune
    from elastic_tf.methods import baselines as baselines
    from elastic_tf.methods import fewshot as fewshot
    from elastic_tf.model import ElasticModel as ElasticModel
    from elastic_tf.plan import Plan as Plan
    from elastic_tf.timing.profile import TimingProfile as TimingProfile
    from elastic_tf.timing.profiler import profile_model as profile_model
    from elastic_tf.train import optimizers as optimizers
    from elastic_tf.train.backup.recovery import Backup as Backup
    from elastic_tf.train.engine.mixin import ElasticMixin as ElasticMixin
    from elastic_tf.train.head.solve import SolveHead as SolveHead
    from elastic_tf.train.head.solve import solve_head as solve_head
    from elastic_tf.train.inputs.samples import Samples as Samples
else:

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
