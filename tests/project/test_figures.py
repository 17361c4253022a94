"""The paper's figures drawn from made-up runs."""

import numpy as np
import paper
import pytest
from paper_specs import FIGURES

from elastic_tf.app import runs
from elastic_tf.files import to_ranges

COUNT, EPOCHS = 12, 3


def made(path, training):
    """A finished run of a training."""
    run = runs.create(path, {"seed": 0})
    steady = 1.0 if training.rho is None else training.rho
    for epoch in range(EPOCHS):
        mask = np.arange(COUNT) >= COUNT * (1 - steady) - epoch
        seconds = {"seconds": 10.0 * steady, "evaluation_seconds": 1.0}
        found = {"epoch": epoch + 1, "loss": 2.0 - 0.5 * epoch, "val_accuracy": 0.5 + 0.1 * epoch}
        run.append_epoch({**found, **seconds, "trained": to_ranges(mask), "tensors": COUNT})
    result = {"accuracy": 0.7, "peak_memory_bytes": 5e8}
    run.finish({**result, "seconds_with_evaluation": 33.0 * steady})
    return run


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws one name from made-up runs."""
    monkeypatch.setattr(paper, "one_run", lambda one, scale, root, _: made(root / one.name, one))
    return lambda kind, name: paper.main([f"--{kind}", name, "--out", str(tmp_path)])


FORMS = {picture.form: name for name, picture in FIGURES.items()}


@pytest.mark.parametrize("name", FORMS.values())
def test_every_form_of_figure_is_drawn(name, drawn):
    (path,) = drawn("figure", name)
    assert path.name == f"figure_{name}.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_speedup_is_the_best_baselines_time_over_ours(drawn, capsys):
    (path,) = drawn("table", "2")
    assert path.read_text().strip() in capsys.readouterr().out
    # all reach it after the same epochs; ours take half as long
    assert "2.00" in path.read_text()
