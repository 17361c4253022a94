from __future__ import annotations

import profile_device
import pytest

import elastic_tf as et

pytestmark = pytest.mark.filterwarnings("ignore:The machine is too busy")


@pytest.mark.slow
def test_profile_device_writes_the_profile_that_it_prints(tmp_path, capsys):
    path = tmp_path / "deep" / "mobilenet.json"
    profile = profile_device.main(
        f"--model mobilenet --alpha 0.25 --input-size 32 --batch-size 2 --classes 3 --repeats 3 "
        f"--dearest 4 --optimizer sgd --out {path}".split()
    )
    stored = et.TimingProfile.load(path)
    assert (stored.count, stored.batch_size, stored.input_shape) == (83, 2, ((32, 32, 3),))
    assert stored.t_full == pytest.approx(profile.t_full)
    printed = capsys.readouterr().out
    assert "of the backward time attributed" in printed
    dearest = max(range(83), key=lambda k: profile.t_dw[k] + profile.t_dy[k])
    assert printed.splitlines()[2].startswith(profile.tensors[dearest].name)


def test_profile_device_names_the_known_models(capsys):
    with pytest.raises(SystemExit, match="2"):
        profile_device.main("--model resnet5 --classes 3 --out x.json".split())
    error = capsys.readouterr().err
    assert "'resnet5'" in error
    assert "'resnet50'" in error
