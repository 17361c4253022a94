"""One training that many tests look at."""

import contextlib
import dataclasses
import io

import numpy as np
import pytest
from tiny_runs import TRAINING, smaller

import elastic_tf as et
from elastic_tf.app.commands import train


@pytest.fixture(scope="module", autouse=True)
def small():
    """The tests of other folders find the network as it is."""
    with smaller():
        yield


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    """A file of grey images in two classes, one brighter."""
    rng = np.random.default_rng(0)
    y = np.arange(16) % 2
    x = (rng.integers(0, 120, (16, 16, 16, 1)) + 120 * y[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "arrays.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    return path


@pytest.fixture(scope="session")
def elastic(arrays, tmp_path_factory):
    """An elastic training in a directory whose name must be quoted, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "an elastic one"
    words = [*TRAINING.split(), "--data", str(arrays), "--out", str(out)]
    words += "--rho 0.7 --interval 1 --probe-size 4".split()
    t = np.ones(8)
    profile = et.TimingProfile.from_chain(t_dw=t, t_dy=t, t_forward=8.0)
    profile = dataclasses.replace(profile, batch_size=4)
    said = io.StringIO()
    with smaller(), contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(et, "profile_model", lambda *_, **__: profile)
        run = train.train(words)
    return run, words, said.getvalue()
