"""Profiles go to files and come back whole, and a damaged file is refused by the field's name."""

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from elastic_tf.timing.profile import CostItem, TensorSpec, TimingProfile, checksum

TABLES = Path(__file__).parents[2] / "profiling" / "tables"
PROFILE = TimingProfile(
    t_forward=10.0,
    items=(
        CostItem((0,), 1.0),
        CostItem((0, 2), 30.0),
        CostItem((1,), 2.0),
        CostItem((2,), 4.0),
    ),
    prefix=(CostItem((0, 1), 6.0),),
    count=3,
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
    PROFILE.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def changed(path: Path, **fields) -> Path:
    """The file with other fields, and their checksum."""
    data = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({**data, "checksum": checksum(data)}))
    return path


def test_save_and_load_keep_every_field(path):
    loaded = TimingProfile.load(path)
    for field in dataclasses.fields(TimingProfile):
        assert getattr(loaded, field.name) == getattr(PROFILE, field.name), field.name


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
            misread += dataclasses.astuple(loaded) != dataclasses.astuple(PROFILE)
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
