import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from networks import crossentropy, network

from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import (
    CostItem,
    TensorSpec,
    TimingProfile,
    checksum,
    tensor_specs,
)


def profile(**changes) -> TimingProfile:
    fields = {
        "t_forward": 10.0,
        "items": (
            CostItem((0,), 1.0),
            CostItem((0, 1), 20.0),
            CostItem((1,), 2.0),
            CostItem((0, 2), 30.0),
            CostItem((2,), 4.0),
        ),
        "count": 3,
    }
    return TimingProfile(**{**fields, **changes})


def model_profile() -> tuple[ElasticModel, TimingProfile]:
    model = ElasticModel.from_model(network())
    model.compile("sgd", crossentropy())
    count = len(model.tensors)
    table = TimingProfile.from_chain(t_dw=np.ones(count), t_dy=np.ones(count), t_forward=5.0)
    fields = {"t_forward": 5.0, "items": table.items, "count": count}
    return model, TimingProfile(**fields, tensors=tensor_specs(model), optimizer="SGD")


def test_step_time_adds_the_sets_that_hold_a_trained_tensor():
    assert profile().step_time(np.array([False, True, False])) == 10 + 20 + 2
    assert profile().step_time(np.array([False, True, True])) == 10 + 20 + 2 + 30 + 4


def test_step_time_of_all_tensors_is_the_full_step():
    assert profile().step_time(np.ones(3, bool)) == profile().t_full == 67.0


def test_projection_charges_shared_work_to_the_last_tensor():
    np.testing.assert_array_equal(profile().t_dw, [1, 2, 4])
    np.testing.assert_array_equal(profile().t_dy, [0, 20, 30])


def test_from_chain_gives_the_example_of_the_paper():
    # Sec. 3.3: M = [0,0,0,1,1,0,0] gives f(M) = [0,0,0,1,1,1,1]
    t_dw, t_dy = 10.0 ** np.arange(7), 3 * 10.0 ** np.arange(7)
    chain = TimingProfile.from_chain(t_dw=t_dw, t_dy=t_dy, t_forward=0.5)
    mask = np.array([0, 0, 0, 1, 1, 0, 0], bool)
    expected = 0.5 + t_dw[3] + t_dw[4] + t_dy[3:].sum()
    assert chain.step_time(mask) == pytest.approx(expected)


def test_from_chain_raises_when_lengths_differ():
    with pytest.raises(
        ValueError, match=r"`t_dy` must be numbers of shape \(2,\). Received: .*\(3,\)"
    ):
        TimingProfile.from_chain(t_dw=[1, 2], t_dy=[1, 2, 3], t_forward=1)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_from_chain_raises_when_a_time_is_no_time(bad):
    with pytest.raises(ValueError, match=f"`t_dw` .* Received: {bad}"):
        TimingProfile.from_chain(t_dw=[1, bad], t_dy=[1, 2], t_forward=1)


@pytest.mark.parametrize("mask", [np.ones(2, bool), np.ones(3)])
def test_step_time_raises_when_the_mask_does_not_fit(mask):
    with pytest.raises(ValueError, match=r"shape \(3,\). Received: "):
        profile().step_time(mask)


def test_check_names_the_first_tensor_that_differs():
    model, own = model_profile()
    other = [*own.tensors[:4], TensorSpec("conv9/kernel", (1, 1), "float32"), *own.tensors[5:]]
    with pytest.raises(ValueError, match="first difference at 4: 'conv9/kernel' .* against 'conv2"):
        TimingProfile(own.t_forward, own.items, own.count, tensors=tuple(other)).check(model)


def test_check_passes_over_names_that_keras_numbered():
    model, own = model_profile()
    renamed = tuple(dataclasses.replace(spec, name=f"again_{spec.name}") for spec in own.tensors)
    dataclasses.replace(own, tensors=renamed).check(model)


def test_a_profile_without_any_time_is_refused():
    with pytest.raises(ValueError, match="Received: a full step of 0 microseconds"):
        TimingProfile.from_chain(t_dw=[0.0, 0.0], t_dy=[0.0, 0.0], t_forward=0.0)


@pytest.mark.parametrize("part", ["items", "prefix"])
@pytest.mark.parametrize(
    ("item", "message"),
    [
        (CostItem((0,), -1.0), "`time` must be .*=-1.0"),
        (CostItem((0,), np.nan), "`time` must be .*=nan"),
        (CostItem((), 1.0), r"indices .* below 3. Received: CostItem\(tensors=\(\)"),
        (CostItem((3,), 1.0), r"\(3,\)"),
        (CostItem((-1,), 1.0), r"\(-1,\)"),
        (CostItem((1, 0), 1.0), r"\(1, 0\)"),
        (CostItem((1, 1), 1.0), r"\(1, 1\)"),
    ],
)
def test_work_that_no_step_can_have_is_refused(part, item, message):
    with pytest.raises(ValueError, match=message):
        profile(**{part: (CostItem((0, 1), 1.0), item)})


def on(*tensors: int) -> np.ndarray:
    return np.isin(np.arange(3), tensors)


@pytest.mark.parametrize(
    ("fill", "held", "spared"),
    [
        (0.0, on(), [0.0, 2.0, 4.0]),
        (0.25, on(), [0.0, 1.5, 3.0]),
        # the first item is held and spared by the plans 1 and 2; with 1 trained it is filled anew
        (0.25, on(0, 1), [0.0, 1.5, 4.0]),
    ],
)
def test_a_cached_prefix_is_paid_from_the_first_trained_tensor_on(fill, held, spared):
    whole = profile(prefix=tuple(CostItem(tuple(range(k + 1)), 2.0) for k in range(3)))
    cached = whole.with_cached_prefix(fill, held)
    assert [whole.step_time(on(k)) - cached.step_time(on(k)) for k in range(3)] == spared
    assert fill or (cached.t_full, cached.t_forward) == (whole.t_full, 4.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": {"name": "Board 5"}}, "name 'Board 5' against '"),
        ({"device": {"inter_op_threads": 7}}, "inter_op_threads 7 against 0 here"),
        ({"optimizer": "Adam"}, "optimizer 'Adam' against 'SGD' here"),
    ],
)
def test_check_warns_of_another(fields, message):
    model, own = model_profile()
    with pytest.warns(UserWarning, match=message):
        dataclasses.replace(own, **fields).check(model)


@pytest.mark.parametrize(
    ("fields", "data", "message"),
    [
        ({"batch_size": 4}, {"batch_size": 8}, "batch size 4, data of batch size 8"),
        (
            {"input_shape": ((6, None, 2),)},
            {"input_shape": [(8, 6, 2)]},
            r"\(6, None, 2\)\], data of \[\(8, 6, 2\)\]",
        ),
    ],
)
def test_check_data_refuses_another(fields, data, message):
    with pytest.raises(ValueError, match=message):
        profile(**fields).check_data(**data)


TABLES = Path(__file__).parents[2] / "profiling" / "tables"
STORED = profile(
    prefix=(CostItem((0, 1), 6.0),),
    tensors=(
        TensorSpec("conv/kernel", (3, 3, 2, 4), "float32"),
        TensorSpec("branch/kernel", (1, 1, 2, 4), "float32"),
        TensorSpec("head/bias", (4,), "float32"),
    ),
    input_shape=((8, None, 3),),
    batch_size=4,
    optimizer="SGD",
    device={"name": "Board 5", "cores": 4},
    method="differences",
    note="n",
    calibration=(1.0,) * 6,
    repeats=10,
    spread=0.02,
    uncertainty=0.01,
    share_attributed=0.99,
    created="2026-01-02T03:04:05+00:00",
)


@pytest.fixture
def path(tmp_path) -> Path:
    STORED.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def changed(path: Path, **fields) -> Path:
    """The file with other fields, and their checksum."""
    data = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({**data, "checksum": checksum(data)}))
    return path


def test_save_and_load_keep_every_field(path):
    loaded = TimingProfile.load(path)
    for field in dataclasses.fields(TimingProfile):
        assert getattr(loaded, field.name) == getattr(STORED, field.name), field.name


@pytest.mark.parametrize("path", sorted(TABLES.rglob("*.json")), ids=lambda path: path.stem)
def test_the_tables_of_the_project_are_read(path):
    loaded = TimingProfile.load(path)
    assert loaded.t_full > 1e4 and loaded.count == len(loaded.tensors)


def test_a_flipped_bit_is_refused_or_changes_nothing(path):
    rng, content = np.random.default_rng(0), path.read_bytes()
    misread = 0
    for place in rng.choice(8 * len(content), 100, replace=False):
        wrong = bytearray(content)
        wrong[place // 8] ^= 1 << (place % 8)
        path.write_bytes(wrong)
        with contextlib.suppress(ValueError):
            loaded = TimingProfile.load(path)
            misread += dataclasses.astuple(loaded) != dataclasses.astuple(STORED)
    assert misread == 0


def test_another_digit_is_refused_by_the_checksum(path):
    content = path.read_text()
    right = json.loads(content)["checksum"]
    path.write_text(content.replace('"time": 30.0', '"time": 20.0'))
    with pytest.raises(ValueError, match=f"is damaged: the checksum is {right}, .*Profile this"):
        TimingProfile.load(path)


@pytest.mark.parametrize("text", ['{"count": 3', "[1, 2]"])
def test_load_raises_when_the_file_is_not_a_profile(path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"profile.json' is no timing profile \(.*Profile this"):
        TimingProfile.load(path)


def test_load_says_how_to_make_a_profile_where_there_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no timing profile '.*/none.json'. Profile this"):
        TimingProfile.load(tmp_path / "none.json")


@pytest.mark.parametrize("version", [6, 8, "7", None])
def test_load_raises_when_the_version_is_another(path, version):
    with pytest.raises(ValueError, match=f"version {version!r}, this library reads 7.*Profile th"):
        TimingProfile.load(changed(path, schema_version=version))
