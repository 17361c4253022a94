"""What doctor finds on machines that are made up."""

import subprocess
import types

import pytest

from elastic_tf.app.commands import doctor


@pytest.fixture
def child(monkeypatch):
    """Sets what child processes end with."""

    def ends(code=0, out="", error=""):
        done = types.SimpleNamespace(returncode=code, stdout=out, stderr=error)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    return ends


def test_the_child_trains_a_step_and_tells_the_device(child, capsys):
    exec(doctor._STEP, {})
    child(out=capsys.readouterr().out)
    doctor.main([])
    said = capsys.readouterr().out
    assert " trains on " in said and said.splitlines()[-1] == "Ready to train."


@pytest.mark.parametrize(
    ("said", "is_wrong"),
    [
        ("No broken requirements found.\n", False),
        ("other 1.0 requires two, which is not installed.\n", False),
        ("elastic_tf 0.1.0 has requirement two>=2, but you have two 1.0.\n", True),
    ],
)
def test_packages_are_compared_with_what_is_asked_for(child, said, is_wrong):
    child(out=said)
    assert ("two>=2" in doctor.packages()) == is_wrong


@pytest.mark.parametrize(
    ("code", "said", "fix"),
    [
        (1, "Traceback\nImportError: no libfoo\n", "TensorFlow: ImportError: no libfoo. Look"),
        (-4, "", "need AVX"),
        (-9, "", "TensorFlow: ended with code -9. Look at ulimit -a"),
    ],
)
def test_a_tensorflow_that_does_not_train_ends_with_1(child, capsys, code, said, fix):
    child(code, error=said)
    with pytest.raises(SystemExit, match="1"):
        doctor.main([])
    assert fix in capsys.readouterr().out


def test_tensorflow_that_hangs_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_STEP", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_SECONDS", 0.2)
    assert "no step in 0.2 s" in doctor.trains()
