"""Every public function with every argument wrong: right all the same, or refused by its name.

A refusal is a ValueError or a TypeError that names the argument and says what was received. No
function changes what it is given.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import public_choices
import public_costs
import public_data
import public_plots
import public_training
import pytest
import tensorflow as tf
from hostile_values import GENERATED, is_said, path, samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from public_call import Call

import elastic_tf

TABLES = (public_costs, public_choices, public_data, public_training, public_plots)
CALLS = {call.name: call for table in TABLES for call in table.CALLS}
# Every function of these is public, but for those that are re-exported from another module.
MODULES = (
    *(
        "activations",
        "budget",
        "datasets",
        "files",
        "flops",
        "importance",
        "knapsack",
        "optimizers",
    ),
    *("plots", "profiler", "ranges", "runs", "selection", "timing", "zoo", "baselines.fixed"),
)
# Of the class that stands in `elastic_tf.__all__`.
CLASSES = {
    "ElasticCallback": "callback.ElasticCallback",
    "ElasticMixin": "mixin.ElasticMixin.set_mask",
    "ElasticModel": "model.ElasticModel.from_model",
    "TimingProfile": "timing.TimingProfile",
}
RECORDS = {"Selection"}  # what functions return
CASES = [
    pytest.param(name, argument, marks=[pytest.mark.slow] * (call.runs and kind is samples))
    for name, call in CALLS.items()
    for argument, kind in call.kinds.items()
]
pytestmark = pytest.mark.filterwarnings("ignore:The machine is too busy")


def public() -> set[str]:
    """The names of all public functions."""
    found = set()
    for place in MODULES:
        module = importlib.import_module(f"elastic_tf.{place}")
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            here = hasattr(module, "__all__") or getattr(value, "__module__", "") == module.__name__
            is_plain = inspect.isfunction(value) or hasattr(value, "__wrapped__")
            if not name.startswith("_") and here and is_plain:
                found.add(f"{place}.{name}")
    for name in elastic_tf.__all__:
        value = getattr(elastic_tf, name)
        if inspect.isclass(value) and name not in RECORDS:
            found.add(CLASSES.get(name, name))
        elif inspect.isfunction(value):
            found.add(f"{value.__module__.partition('.')[2]}.{name}")
    for kind, place in (
        (elastic_tf.TimingProfile, "timing"),
        (importlib.import_module("elastic_tf.runs.run").Run, "runs"),
    ):
        for name, value in vars(kind).items():
            if not name.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, classmethod)
            ):
                found.add(f"{place}.{kind.__name__}.{name}")
    return found


def test_no_public_function_is_missing():
    assert public() - CALLS.keys() == set()


@pytest.mark.parametrize("name", CALLS)
def test_no_argument_is_missing(name, tmp_path):
    call = CALLS[name]
    offered = set(call.given(tmp_path))
    assert set(call.kinds) <= offered
    parameters = inspect.signature(call.function).parameters.values()
    named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
    if name == "callback.ElasticCallback":  # excludes `rho`, and has a call of its own
        named -= {"deadline"}
    if name == "timing.TimingProfile":  # what else it holds is told to people only
        named &= {"t_forward", "sets", "count"}
    assert named <= offered and offered - {"run"} <= set(call.kinds)


# A profile takes long, and is made in many other tests.
@pytest.mark.parametrize("name", [name for name in CALLS if name != "profiler.profile_model"])
def test_the_call_that_is_right_is_right(name, tmp_path):
    call = CALLS[name]
    assert call.holds(call.function(**call.given(tmp_path)))


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """Relative paths lead here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_a_hostile_value_is_right_or_refused(name, argument, somewhere):
    call = CALLS[name]
    (somewhere / "valid").mkdir()
    valid = call.given(somewhere / "valid")[argument]
    values = enumerate(call.kinds[argument](valid))
    problems = [problem(call, argument, value, somewhere / str(k)) for k, value in values]
    assert not any(problems), "\n".join(filter(None, problems))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument)
        for name, call in CALLS.items()
        for argument, kind in call.kinds.items()
        if kind in GENERATED and not call.runs
    ],
)
def test_a_generated_value_is_right_or_refused(name, argument, somewhere):
    call = CALLS[name]

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(GENERATED[call.kinds[argument]], st.integers(min_value=0))
    def try_one(value: Any, number: int) -> None:
        assert problem(call, argument, value, somewhere / str(number)) == ""

    try_one()


def problem(call: Call, argument: str, value: Any, folder: Path) -> str:
    """Call the function with the value; what is wrong with what comes of it."""
    folder.mkdir(exist_ok=True)
    arguments = {**call.given(folder), argument: value}
    parameter = inspect.signature(call.function).parameters.get(argument)
    if value is None and parameter is not None and parameter.default is None:
        return ""  # it may be left out
    before = {name: frozen(item) for name, item in arguments.items()}
    said = f"{argument}={repr(value)[:80]}: "
    try:
        result = call.function(**arguments)
    except (ValueError, TypeError) as error:
        text = str(error)
        names = (argument, *call.also.get(argument, ()))
        if not any(name in text for name in names) or "Received" not in text:
            return f"{said}not named in {type(error).__name__}: {text}"
        if not is_said(text, value):
            return f"{said}what was received is not in {text}"
    except OSError as error:
        if call.kinds[argument] is not path or str(value)[:9] not in str(error):
            return f"{said}{error!r}"
    except Exception as error:
        return f"{said}{error!r}"
    else:
        if not call.holds(result):
            return f"{said}gives {result!r}"
    after = {name: frozen(item) for name, item in arguments.items()}
    return "" if before == after else f"{said}was changed"


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("`n` must be an integer of at least 1. Received: something.", 7),
        ("`n` must be a list of numbers. Received: a number.", [7]),
        ("`n` must be 7. Received: another one.", 7),
        ("`n` must be in (0, 1]. Received: rho. Use 0.5 to halve the step time.", [0.5]),
        ("`n` must be a number. Received: 17.", 7),
        ("`n` must be a number. Received: 7.5.", 7),
        ("`n` must be None. Received: NoneType.", None),
        ("`n` must be x. Received: a text.", "a"),
        ("The model must fit. Received: a batch.", "model"),
    ],
)
def test_a_value_beside_what_was_received_is_not_said(message, value):
    assert not is_said(message, value)


@pytest.mark.parametrize(
    ("received", "value"),
    [
        ("7", 7),
        ("n=7.0 of 12", 7),
        ("-1.0 seconds", -1),
        ("'a'", "a"),
        ("[7, 8]: too many", [7, 8]),
        ("float64 of shape (2,)", np.zeros(2)),
        ("nan at n[0]", np.array([np.nan])),
    ],
)
def test_a_value_that_was_received_is_said(received, value):
    assert is_said(f"`n` must be something else. Received: {received}. Use 1.", value)


def frozen(value: Any) -> Any:
    """What can be compared later on."""
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.flags.writeable, repr(value.tolist())
    if isinstance(value, tf.keras.Model):
        return b"".join(weight.tobytes() for weight in value.get_weights())
    if isinstance(value, (list, tuple, set)):
        return [frozen(item) for item in value]
    if isinstance(value, dict):
        return [(key, frozen(item)) for key, item in value.items()]
    if isinstance(value, (tf.Variable, tf.Tensor, tf.GradientTape, Figure)) or callable(value):
        return id(value)
    if type(value).__module__.startswith(("elastic_tf", "keras", "tensorflow")):
        return id(value)
    return repr(value)
