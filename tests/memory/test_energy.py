from __future__ import annotations

import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_tf.memory import energy
from elastic_tf.memory.energy import Meter, find_sensor

RANGE = 262_143_328_850  # microjoules, of a desktop processor


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def zone(root, number, name, energy):
    folder = root / "class" / "powercap" / f"intel-rapl:{number}"
    return write(folder, name=name, energy_uj=energy, max_energy_range_uj=RANGE)


def board(root, rail="VDD_IN", chip="ina3221"):
    folder = root / "class" / "hwmon" / "hwmon3"
    return write(folder, name=chip, in1_label=rail, in1_input=5000, curr1_input=2000)


def test_counters_of_processors_and_memory_are_added(tmp_path):
    first, second = zone(tmp_path, "0", "package-0", 1_000), zone(tmp_path, "1", "package-1", 0)
    memory = zone(tmp_path, "0:1", "dram", 0)
    core = zone(tmp_path, "0:0", "core", 0)  # a part of the package
    sensor = find_sensor(tmp_path)
    assert sensor.name == "RAPL package-0 + dram + package-1"
    for folder, joules in ((first, 3.001), (second, 0.5), (memory, 0.25), (core, 9e3)):
        write(folder, energy_uj=int(1e6 * joules))
    assert [sensor.joules(), sensor.joules()] == pytest.approx([3.75, 3.75])


def test_a_counter_that_starts_again_goes_on(tmp_path):
    folder = zone(tmp_path, "0", "package-0", RANGE - 2_000_000)
    meter = find_sensor(tmp_path)
    write(folder, energy_uj=1_000_000)
    assert meter.joules() == pytest.approx(3.0)
    write(folder, energy_uj=1_500_000)
    assert meter.joules() == pytest.approx(3.5)


def test_a_rail_that_feeds_the_board_is_integrated(tmp_path, monkeypatch):
    folder = board(tmp_path)
    moments = iter([0.0, 2.0, 3.0])
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    sensor = find_sensor(tmp_path)
    assert sensor.name == "INA VDD_IN"
    write(folder, curr1_input=4000)
    assert sensor.joules() == pytest.approx(2 * (10 + 20) / 2)  # watts at both ends
    assert sensor.joules() == pytest.approx(30 + 20)


@pytest.mark.parametrize(("rail", "chip"), [("VDD_GPU_SOC", "ina3221"), ("VDD_IN", "nct6775")])
def test_find_sensor_invents_none_from_parts_and_other_chips(tmp_path, rail, chip):
    board(tmp_path, rail, chip)
    assert find_sensor(tmp_path) is None


def test_find_sensor_warns_of_a_counter_that_cannot_be_read(tmp_path, monkeypatch):
    forbidden = zone(tmp_path, "0", "package-0", 0) / "energy_uj"
    forbid(forbidden, monkeypatch)
    with pytest.warns(UserWarning, match="energy_uj.*chmod a\\+r"):
        assert find_sensor(tmp_path) is None


def test_joules_are_none_after_a_reading_that_failed(tmp_path, monkeypatch):
    folder = zone(tmp_path, "0", "package-0", 0)
    meter = find_sensor(tmp_path)
    assert meter.joules() == 0.0
    with monkeypatch.context() as patch:
        forbid(folder / "energy_uj", patch)
        assert meter.joules() is None
    assert meter.joules() is None


def test_a_meter_reads_meanwhile():
    readings = itertools.count(1)
    third = threading.Event()

    def advance():
        if next(readings) == 3:
            third.set()
        return 1.0

    meter = Meter("ticks", 0.001, advance)
    meter.start()
    assert third.wait(10)
    meter.stop()
    assert meter.joules() == next(readings) - 1 > 3


def forbid(path, monkeypatch):
    """Make a file unreadable for root too."""
    read = Path.read_text

    def refuse(self, *args, **options):
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
