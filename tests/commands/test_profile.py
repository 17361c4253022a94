from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest

import elastic_tf as et
from elastic_tf.commands import profile
from elastic_tf.commands.profiling import text, work
from elastic_tf.timing.profile import TensorSpec
from elastic_tf.timing.runtime import RuntimeSettings, SettingsTrial

pytestmark = pytest.mark.filterwarnings("ignore:The machine is too busy")
SCRIPT = Path(__file__).resolve().parents[2] / "profiling" / "profile_device.py"


@pytest.mark.slow
def test_profile_writes_the_profile_that_it_prints(tmp_path, capsys):
    path = tmp_path / "deep" / "mobilenet.json"
    profile.main(
        f"--model mobilenet --alpha 0.25 --input-size 32 --batch-size 2 --classes 3 --repeats 3 "
        f"--dearest 4 --optimizer sgd --as-is --out {path} --plot {tmp_path / 'bars.png'}".split()
    )
    stored = et.TimingProfile.load(path)
    assert (stored.count, stored.batch_size, stored.input_shape) == (83, 2, ((32, 32, 3),))
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "of the backward time attributed" in printed
    dearest = max(range(83), key=lambda k: stored.t_dw[k] + stored.t_dy[k])
    lines = printed.splitlines()
    rule = next(place for place, line in enumerate(lines) if line.startswith("---"))
    assert lines[rule + 1].startswith(stored.tensors[dearest].name)


@pytest.mark.slow
def test_profile_measures_under_the_best_settings_and_keeps_the_trials(
    tmp_path, capsys, monkeypatch
):
    best = RuntimeSettings(inter_op_threads=1, intra_op_threads=1)
    trials = (
        SettingsTrial(best, 2e3, 0.5),
        SettingsTrial(RuntimeSettings(xla=True), None, None, "no"),
    )

    def found(words, report):
        for number, trial in enumerate(trials, 1):
            report(trial, number, len(trials))
        return best, trials

    monkeypatch.setattr(work, "search", found)
    path = tmp_path / "mobilenet.json"
    profile.main(
        f"--model mobilenet --alpha 0.25 --input-size 32 --batch-size 2 --classes 3 --repeats 3 "
        f"--optimizer sgd --out {path}".split()
    )
    stored = et.TimingProfile.load(path)
    assert stored.settings == best
    assert stored.trials == trials
    assert stored.device["inter_op_threads"] == 1
    printed = capsys.readouterr().out
    assert "1 of 2  1 inter-op threads, 1 intra-op threads" in printed
    assert "0.50 x the step time of the defaults; about 1 min to go\n" in printed
    assert "failed: no\n" in printed
    assert "Best: 1 inter-op threads, 1 intra-op threads" in printed


def test_profile_refuses_a_file_it_cannot_write_before_it_measures(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="--out cannot be written. Received: '.*file/p.json'"):
        profile.main(
            ["--model", "vgg16", "--classes", "3", "--out", str(tmp_path / "file" / "p.json")]
        )


def test_profile_names_the_known_models(capsys):
    with pytest.raises(SystemExit, match="2"):
        profile.main("--model resnet5 --classes 3 --out x.json".split())
    error = capsys.readouterr().err
    assert "'resnet5'" in error
    assert "'resnet50'" in error


def table(scale: float, name: str) -> et.TimingProfile:
    chain = et.TimingProfile.from_chain(t_dw=[1e3, 2e3], t_dy=[0, 3e3], t_forward=4e3)
    sets = tuple(dataclasses.replace(group, time=group.time * scale) for group in chain.items)
    specs = (TensorSpec("a/kernel", (2,), "float32"), TensorSpec("b/kernel", (3,), "float32"))
    return et.TimingProfile(4e3, sets, 2, tensors=specs, device={"name": name}, batch_size=4)


def alone(words, capsys, **options) -> str:
    """What is printed by an option that stands alone."""
    with pytest.raises(SystemExit, match="0"):
        profile.main(words, **options)
    return capsys.readouterr().out


def test_list_shows_the_tables_of_each_device(tmp_path, capsys):
    table(1.0, "Board 5").save(tmp_path / "board5" / "net.json")
    told = alone(["--list"], capsys, tables=tmp_path)
    assert told.splitlines()[2].split() == "board5/net.json Board 5 2 4 10.0 40%".split()
    assert alone(["--list", str(tmp_path)], capsys) == told


def test_list_says_where_tables_come_from_where_there_are_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "no tables in 'profiling/tables'" in alone(["--list"], capsys)
    told = alone(["--list", "mine"], capsys)
    assert "no tables in 'mine'" in told and "the project's checkout" in told


def test_script_lists_the_tables_that_come_with_the_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["profile_device.py", "--list"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "amd_epyc_2cores/resnet50_224_b4.json" in capsys.readouterr().out


def test_compare_sets_two_devices_side_by_side(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("one.json", "two.json")]
    for path, scale in zip(paths, (1.0, 2.0)):
        table(scale, f"Board {scale:g}").save(path)
    printed = alone(["--compare", *paths], capsys)
    assert "A: Board 1" in printed
    full = next(line for line in printed.splitlines() if line.startswith("full step"))
    assert full.split()[-3:] == ["10.00", "16.00", "1.60"]


@pytest.mark.parametrize(
    ("spread", "uncertainty", "said"),
    [
        (0.1, 0.04, "The measurement is fine"),
        (0.11, 0.0, "is noisy, the spread is above 10%: profile again on an idle machine"),
        (0.2, 0.05, "above 10% and the forward share may be off by more than 4%: profile again"),
    ],
)
def test_a_report_says_whether_to_rely_on_the_profile(spread, uncertainty, said):
    measured = dataclasses.replace(table(1.0, "x"), spread=spread, uncertainty=uncertainty)
    measured.device["cores"] = 2
    assert said in text.report(measured, 2)


def test_compare_refuses_profiles_of_different_models():
    chain = et.TimingProfile.from_chain(t_dw=[1], t_dy=[1], t_forward=1)
    with pytest.raises(ValueError, match="2 and 1 tensors"):
        text.comparison(table(1.0, "x"), chain)
