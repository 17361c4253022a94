"""The command that measures, and the search for the fastest runtime settings."""

from __future__ import annotations

import dataclasses
import os
import subprocess

import pytest
from tiny_runs import NETWORK, Options, say_nothing, serve

import elastic_tf as et
from elastic_tf.commands import profile, settings_search
from elastic_tf.commands.commandline import parse
from elastic_tf.timing.profile import TensorSpec
from elastic_tf.timing.runtime import RuntimeSettings

WORDS = NETWORK + "--classes 3 --repeats 3 "


def test_profile_writes_the_profile_that_it_prints(tmp_path, capsys):
    path = tmp_path / "deep" / "profile.json"
    profile.main(f"{WORDS} --optimizer sgd --as-is --out {path}".split())
    stored = et.TimingProfile.load(path)
    assert (stored.count, stored.batch_size, stored.input_shape) == (8, 4, ((16, 16, 1),))
    said = capsys.readouterr().out
    assert "of the backward time attributed to 8 tensors" in said
    dearest = max(range(8), key=lambda k: stored.t_dw[k] + stored.t_dy[k])
    lines = said.splitlines()
    rule = next(place for place, line in enumerate(lines) if line.startswith("---"))
    assert lines[rule + 1].startswith(stored.tensors[dearest].name)


def table(**fields) -> et.TimingProfile:
    chain = et.TimingProfile.from_chain(t_dw=[1e3, 2e3], t_dy=[0, 3e3], t_forward=4e3)
    specs = (TensorSpec("a/kernel", (2,), "float32"), TensorSpec("b/kernel", (3,), "float32"))
    device = {"name": "x", "cores": 2}
    return dataclasses.replace(chain, tensors=specs, device=device, batch_size=4, **fields)


def test_profile_measures_under_the_best_settings_and_keeps_the_trials(
    tmp_path, capsys, monkeypatch
):
    best = RuntimeSettings(inter_op_threads=1)
    trials = (settings_search.SettingsTrial(best, 2e3, 0.5),)
    path = tmp_path / "profile.json"

    def measured(words, env, **_):
        assert words[3] == "profile" and "--as-is" in words
        assert env["TF_NUM_INTEROP_THREADS"] == "1"
        table(settings=best).save(path)

    monkeypatch.setattr(settings_search, "search", lambda settings: (best, trials))
    monkeypatch.setattr(subprocess, "run", measured)
    profile.main([*WORDS.split(), "--out", str(path)])
    stored = et.TimingProfile.load(path)
    assert (stored.settings, stored.trials) == (best, trials)
    assert "Best: 1 inter-op threads" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error", "received"),
    [
        ("--as-is --classes 3 --out file/p.json", OSError, "file"),
        ("--as-is --classes 3 --out p.json --model resnet5", ValueError, "resnet50.*'resnet5'"),
        ("--out p.json", ValueError, "`classes` and `data` must be given. Received: none"),
    ],
)
def test_what_cannot_be_done_is_refused(words, error, received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=received):
        profile.main(words.split())


def test_profile_finds_the_classes_in_the_images(arrays, tmp_path, monkeypatch):
    for name in ("train/a", "train/b", "train/c", "test/a", "test/b", "test/c"):
        (tmp_path / name).mkdir(parents=True)
    found = []
    monkeypatch.setattr(profile, "measured", lambda settings: found.append(settings) or table())
    for data in (arrays, tmp_path, "digits", "tfds:cifar100"):
        profile.main(f"{NETWORK} --as-is --data {data} --out {tmp_path}/profile.json".split())
    assert [settings.classes for settings in found] == [2, 3, 10, 100]


@pytest.mark.parametrize(("spread", "said"), [(0.1, "is fine"), (0.11, "spread is above 10%")])
def test_a_report_says_whether_to_rely_on_the_profile(spread, said):
    assert said in profile.report(table(spread=spread))


def options():
    return parse(profile.Settings, "", [*WORDS.split(), "--out", "x"])


def test_the_search_keeps_the_fastest_settings_and_what_failed(monkeypatch, capsys):
    monkeypatch.setattr(settings_search, "serve_steps", serve)
    monkeypatch.setattr(settings_search, "usable_cores", lambda: 1)
    before = dict(os.environ)
    best, trials = settings_search.search(Options())
    assert best == RuntimeSettings(inter_op_threads=2, intra_op_threads=1)
    onednn, threads = trials
    assert (onednn.ratio, threads.ratio) == (None, 0.5)
    assert onednn.error == "ended with exit code 3"
    assert threads.settings.onednn is None  # what failed is not part of the next trial
    assert "0.50 x the step time of the defaults" in capsys.readouterr().out
    assert dict(os.environ) == before


def test_a_process_that_says_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(settings_search, "serve_steps", say_nothing)
    monkeypatch.setattr(settings_search, "_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=r"took longer than 0\.2 seconds"):
        settings_search.search(Options())


class Connection:
    """Asks for two steps, once."""

    def __init__(self):
        self.asked, self.sent = [2], []

    def recv(self):
        if not self.asked:
            raise EOFError
        return self.asked.pop()

    def send(self, answer):
        self.sent.append(answer)


def test_steps_are_timed_or_their_failure_is_told():
    good, bad = Connection(), Connection()
    settings_search.serve_steps(options(), good)
    assert len(good.sent[0]) == 2 and min(good.sent[0]) > 0
    settings_search.serve_steps(dataclasses.replace(options(), model="magic"), bad)
    assert bad.sent[0].startswith("ValueError: ") and "'magic'" in bad.sent[0]
