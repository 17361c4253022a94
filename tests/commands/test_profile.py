"""The command that measures."""

import dataclasses

import pytest
from tiny_runs import NETWORK

import elastic_tf as et
from elastic_tf.app.commands import profile
from elastic_tf.app.commands.commandline import parse
from elastic_tf.app.commands.training import sources
from elastic_tf.timing.profile import TensorSpec

WORDS = NETWORK + "--classes 3 --repeats 3 "


def test_profile_writes_the_profile_that_it_prints(tmp_path, capsys):
    path = tmp_path / "deep" / "profile.json"
    profile.main(f"{WORDS} --optimizer sgd --out {path}".split())
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


@pytest.mark.parametrize(
    ("words", "error", "received"),
    [
        ("--classes 3 --out file/p.json", OSError, "file"),
        ("--out p.json", ValueError, "`classes` and `data` must be given. Received: none"),
    ],
)
def test_what_cannot_be_done_is_refused(words, error, received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=received):
        profile.main(words.split())


def test_profile_finds_the_classes_in_the_images(arrays, tmp_path):
    for name in ("train/a", "train/b", "train/c", "test/a", "test/b", "test/c"):
        (tmp_path / name).mkdir(parents=True)
    found = []
    for data in (arrays, tmp_path, "digits", "tfds:cifar100"):
        words = f"{NETWORK} --data {data} --out {tmp_path}/profile.json".split()
        found.append(sources.counts(parse(profile.Settings, "", words))[0])
    assert found == [2, 3, 10, 100]


@pytest.mark.parametrize(("spread", "said"), [(0.1, "is fine"), (0.11, "spread is above 10%")])
def test_a_report_says_whether_to_rely_on_the_profile(spread, said):
    assert said in profile.report(table(spread=spread))
