from __future__ import annotations

import types

import numpy as np
import pytest
from networks import images
from training import elastic

from elastic_tf.backup import resume
from elastic_tf.callback import ElasticCallback
from elastic_tf.engine import replicas
from elastic_tf.selection.records import SelectionRecord
from elastic_tf.selection.selector import select_tensors
from elastic_tf.timing.profile import TimingProfile


def table() -> TimingProfile:
    ones = np.ones(10)
    return TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=10.0)


def record() -> SelectionRecord:
    importance = np.linspace(-0.5, 1.0, 10)
    selection = select_tensors(importance, table(), 0.6)
    return SelectionRecord(3, 0.6, selection, importance, 0.59, 0.1, 0.01, achieved_ratio=0.6)


def test_recall_returns_what_was_remembered():
    model, one = elastic(), record()
    resume.remember(model, one, 3)
    two, selected_at = resume.recall(model)
    assert selected_at == 3
    np.testing.assert_array_equal(two.mask, one.mask)
    np.testing.assert_array_equal(two.importance, one.importance)
    assert (two.epoch, two.achieved_ratio, two.reason) == (3, 0.6, "interval")
    assert two.selection.time == one.selection.time


def test_recall_finds_nothing_in_a_fit_that_starts():
    assert resume.recall(elastic()) is None


def test_a_deadline_over_several_workers_is_refused(monkeypatch):
    monkeypatch.setattr(replicas, "spans_workers", lambda strategy: True)
    callback = ElasticCallback(table(), probe=images(), deadline=100.0)
    callback.set_model(elastic())
    with pytest.raises(ValueError, match="`deadline`.*1 replicas in several workers"):
        callback.on_train_begin()


def test_profiling_on_several_replicas_is_refused(monkeypatch):
    model = elastic()
    strategy = types.SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(type(model), "distribute_strategy", strategy)
    with pytest.raises(ValueError, match="`reprofile_every`.*2 replicas"):
        resume.check_replicas(model, deadline=False, reprofile=True)
    with pytest.raises(ValueError, match="`backup_dir`.*2 replicas"):
        resume.check_replicas(model, deadline=False, reprofile=False, backup=True)
