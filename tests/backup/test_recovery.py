"""A training that is killed, wherever, ends bit for bit as one that is not."""

import functools
import json
import resource

import networks
import numpy as np
import pytest
import tensorflow as tf
from interrupted import (
    BATCH,
    CHEAP,
    EPOCHS,
    MOMENTS,
    PROFILE,
    SAMPLES,
    STEPS,
    Kill,
    KillAt,
    arrays,
    at_call,
    kill,
    network,
    shuffled,
    sliced,
    train,
)
from networks import crossentropy

import elastic_tf as et

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("deterministic")]


def killed(folder, *callbacks, **options) -> None:
    with pytest.raises(Kill):
        train(folder, *callbacks, **options)


def files_by_age(folder) -> list[str]:
    """Older first."""
    numbers = {}
    for name in ("a.npz", "b.npz"):
        with np.load(folder / name) as file:
            numbers[name] = json.loads(file["json"].tobytes())["number"]
    return sorted(numbers, key=numbers.get)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    tf.config.experimental.enable_op_determinism()
    return train(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def cheap(tmp_path_factory) -> dict:
    tf.config.experimental.enable_op_determinism()
    return train(tmp_path_factory.mktemp("cheap"), **CHEAP)


def test_killed_again_and_again(tmp_path, monkeypatch, whole, capsys):
    """Between steps, at the end of an epoch, and within what is no step."""
    for moment, *place in [
        ("importance", 1),
        ("array", 40),
        ("on_train_batch_end", 1, STEPS - 1),
        ("data", 1),
        ("rename", 3),
        ("on_epoch_end", 2),
    ]:
        if moment not in MOMENTS:
            killed(tmp_path, KillAt(moment, *place))
            continue
        with monkeypatch.context() as patch:
            where, name = MOMENTS[moment]
            patch.setattr(where, name, at_call(*place, kill, where, name))
            killed(tmp_path)
    assert train(tmp_path) == whole
    first, again = whole["selections"]  # in epochs 0 and 2, of other masks
    assert (first[0], again[0]) == (0, 2) and first[3] != again[3] and not all(first[3])
    assert capsys.readouterr().out == ""


def test_backups_change_nothing(tmp_path):
    assert train(tmp_path, dropout=0.0, **CHEAP) == train(None, dropout=0.0, **CHEAP)


def in_arrays() -> dict:
    x, y = arrays()
    return {"x": x, "y": y, "batch_size": BATCH}


def by_probe(model, x, y):
    """A cheap importance that depends on the probe."""
    return et.importance.weight_magnitude(model) + np.sin(float(tf.reduce_sum(x)) * np.arange(8.0))


def repeated() -> dict:
    weights = {0: 1.0, 1: 2.0, 2: 0.5}
    return {"x": shuffled().repeat(), "steps_per_epoch": 4, "class_weight": weights}


def one_pass_for_all() -> dict:
    return {"x": shuffled().repeat(9), "steps_per_epoch": STEPS}


def of_unknown_length(most: int = 9) -> dict:
    twice = sliced().shuffle(SAMPLES, seed=1).shuffle(3, seed=2).batch(BATCH)
    return {"x": twice.filter(lambda x, y: True).take(most)}


def generator() -> dict:
    x, y = (np.concatenate([part] * EPOCHS) for part in arrays())
    starts = range(0, len(x), BATCH)
    batches = ((x[k : k + BATCH], y[k : k + BATCH]) for k in starts)
    return {"x": batches, "steps_per_epoch": 4}


class Batches(tf.keras.utils.Sequence):
    def __len__(self):
        return STEPS

    def __getitem__(self, k):
        return tuple(part[k * BATCH : (k + 1) * BATCH] for part in arrays())


def sequence() -> dict:
    return {"x": Batches(), "shuffle": False}


@pytest.mark.parametrize(
    "options",
    [
        {"data": in_arrays, "optimizer": "schedule", "compiled": {"steps_per_execution": 2}},
        {"data": repeated, "optimizer": "adamw", "probe": et.Probe(arrays(), size=8)},
        {"data": of_unknown_length, "importance": by_probe, "optimizer": "adam"},
        {"data": one_pass_for_all},
        {"data": generator},
        {"data": sequence, "optimizer": "scaled", "backup": {"every": None}},
    ],
    ids=lambda options: options["data"].__name__,
)
def test_ends_as_if_nothing_had_happened(tmp_path, options):
    options = {**CHEAP, **options}
    expected = train(tmp_path / "whole", **options)
    killed(tmp_path / "cut", KillAt("on_train_batch_end", 2, 3), **options)
    assert train(tmp_path / "cut", **options) == expected


def test_shorter_data_are_refused(tmp_path):
    killed(tmp_path, KillAt("on_train_batch_end", 2, 4), data=of_unknown_length, **CHEAP)
    with pytest.raises(ValueError, match="end after 2 batches, 4 of them were trained"):
        train(tmp_path, data=functools.partial(of_unknown_length, 2), **CHEAP)


def test_goes_on_from_the_other_backup_and_says_where(tmp_path, cheap, capsys):
    killed(tmp_path, KillAt("on_train_batch_end", 2, 3), **CHEAP)
    (tmp_path / files_by_age(tmp_path)[1]).write_bytes(b"")
    with pytest.warns(UserWarning, match="The other backup is taken"):
        assert train(tmp_path, verbose=1, **CHEAP) == cheap
    assert "is taken up: epoch 3, after 2 of its steps." in capsys.readouterr().out


def test_callbacks_of_keras_remember_what_they_saw(tmp_path):
    def neighbours():
        stop = tf.keras.callbacks.EarlyStopping(
            "loss", patience=2, min_delta=9.0, restore_best_weights=True
        )
        return stop, tf.keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0)

    expected = train(tmp_path / "whole", *neighbours(), **CHEAP)
    assert len(expected["epochs"]) == 3  # the second and the third one were no better
    rates = [*expected["history"].values()][-1]
    assert rates != rates[:1] * 3
    for place in [("on_train_batch_end", 1, 3), ("on_epoch_begin", 2)]:
        killed(tmp_path / "cut", *neighbours(), KillAt(*place), **CHEAP)
    assert train(tmp_path / "cut", *neighbours(), **CHEAP) == expected
    with pytest.raises(
        ValueError, match=r"Received: callbacks \[\], in the backup \['EarlyStopping', 'Reduce"
    ):
        train(tmp_path / "cut", **CHEAP)


class Count(tf.keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


def test_what_was_trained_or_stopped_is_not_trained_again(tmp_path, cheap, monkeypatch):
    train(tmp_path, fitted={"epochs": 3}, **CHEAP)
    kept_for = []
    monkeypatch.setattr(et.ElasticModel, "cache_prefix", lambda _, few: kept_for.append(few))
    for epochs in (3, 1):
        count = Count()
        with pytest.warns(
            UserWarning, match=f"of 3 epochs, .* {epochs} in all: nothing is trained"
        ):
            train(tmp_path, count, fitted={"epochs": epochs}, **CHEAP)
        assert count.steps == 0
    assert kept_for == [0, 0]  # activations are kept for no epoch, so not at all
    assert train(tmp_path, count, **CHEAP) == cheap  # one epoch more
    assert count.steps == STEPS
    stop = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: setattr(stop.model, "stop_training", True)
    )
    train(tmp_path / "stopped", stop, fitted={"epochs": 3}, **CHEAP)
    with pytest.warns(UserWarning, match="a callback stopped after 1 of 3 epochs, .* 3 in all"):
        train(tmp_path / "stopped", stop, fitted={"epochs": 3}, **CHEAP)


def test_a_fit_that_raised_stands_in_no_other_ones_way(tmp_path):
    model = et.ElasticModel.from_model(network(0.0))
    model.compile("sgd", crossentropy())
    backup, importance = et.Backup(tmp_path, every=2), et.importance.weight_magnitude
    elastic = et.ElasticCallback(
        *(PROFILE, 0.6, 9, shuffled()), importance=importance, backup=backup
    )
    count = Count()

    def fit(*callbacks):
        model.fit(shuffled(), epochs=2, verbose=0, callbacks=[*callbacks, count])

    with pytest.raises(Kill):
        fit(elastic, KillAt("on_train_batch_end", 1, 3))
    frozen = np.flatnonzero(~elastic.selections[-1].mask)
    before = [model.tensors[k].numpy() for k in frozen]
    count.steps = 0
    fit()
    assert count.steps == 2 * STEPS  # from its first step, whatever there is a backup of
    assert all((model.tensors[k].numpy() != old).any() for k, old in zip(frozen, before))
    count.steps = 0
    fit(elastic)
    assert count.steps == 1  # of ten nine were backed up
    fit(elastic)  # another training with the same callback
    assert count.steps == 1 + 2 * STEPS


class FullDisk(tf.keras.callbacks.Callback):
    """No file may grow beyond some bytes during one epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if epoch == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, self.limits[1]))

    def on_epoch_end(self, epoch, logs=None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limits[1], self.limits[1]))


def test_a_full_disk_keeps_the_last_good_backup_and_does_not_stop_the_training(tmp_path, cheap):
    with pytest.warns(UserWarning, match=r"epoch 3, step [24] could not be written.*goes on"):
        disk = FullDisk()
        killed(tmp_path, disk, KillAt("on_train_batch_end", 2, 4), **CHEAP)
    disk.on_epoch_end(2)
    count = Count()
    assert train(tmp_path, count, **CHEAP) == cheap
    assert count.steps == 2 * STEPS


def slow() -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(1e-5, momentum=0.9)


def weighted(model, x, y):
    """Another importance."""
    return et.importance.weight_magnitude(model)


def in_samples(shift=0, size=BATCH):
    x, _ = arrays()
    y = x[:, : networks.CLASSES].argmax(axis=1)  # which can be learned
    return {"x": et.Samples(x, (y + shift) % networks.CLASSES, batch_size=size)}


OTHERS = [
    ({"optimizer": "adam"}, "optimizer Adam, in the backup SGD"),
    ({"optimizer": "slow"}, "optimizer's learning_rate [^ ]*e-0[56], in the backup 0.0"),
    ({"fitted": {"initial_epoch": 1}}, "initial_epoch 1, in the backup 0"),
    ({"data": functools.partial(in_samples, size=1)}, "batches in an epoch 20, in the backup 5"),
    ({"rho": 0.7}, "rho 0.7, in the backup 0.6"),
    ({"rho": lambda epoch: 0.6}, "rho .*lambda.*, in the backup 0.6"),
    ({"rho": et.Deadline(600)}, "rho Deadline of 600 s, in the backup 0.6"),
    ({"interval": 3}, "interval 3, in the backup 2"),
    ({"importance": weighted}, "importance weighted, in the backup weight_magnitude"),
    ({"memory": "1 GiB"}, "memory 1 GiB, in the backup None"),
    ({"compiled": {"statistics": "stored"}}, "statistics stored, in the backup batch"),
    ({"data": functools.partial(in_samples, 1)}, r"checksum of samples \d+, in the backup \d+"),
    (
        {"loss": tf.keras.losses.SparseCategoricalCrossentropy()},
        "loss .*'from_logits': False.*, in the backup .*'from_logits': True",
    ),
    (
        {"loss": "sparse_categorical_crossentropy"},
        r"loss \['sparse_categorical_crossentropy'\], in the backup .*'from_logits': True",
    ),
]


def test_a_training_that_is_asked_for_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(networks.MORE_OPTIMIZERS, "slow", slow)
    given = {**CHEAP, "data": in_samples}
    killed(tmp_path, KillAt("on_epoch_begin", 1), **given)
    for options, received in OTHERS:
        with pytest.raises(ValueError, match=f"Received: {received}"):
            train(tmp_path, **{**given, **options})
    assert train(tmp_path, **given)["epochs"] == [0, 1, 2, 3]


def test_what_is_trained_is_kept_with_the_head_solved_again(tmp_path):
    def head():
        return et.SolveHead()

    given = {**CHEAP, "data": in_samples, "dropout": 0.0}
    ended = train(tmp_path / "whole", head(), **given)
    with pytest.warns(UserWarning, match="nothing is trained"):
        assert train(tmp_path / "whole", head(), **given)["variables"] == ended["variables"]
    alone = train(tmp_path / "alone", et.SolveHead(again=False), **given)
    assert alone["variables"] != ended["variables"]  # it was solved again, and is another one
    killed(tmp_path / "cut", head(), KillAt("on_train_batch_end", 2, 3), **given)
    assert train(tmp_path / "cut", head(), **given) == ended


def test_an_optimizer_that_does_not_tell_its_settings_is_named(tmp_path, monkeypatch):
    class Halving(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * 0.5 ** tf.cast(step, tf.float32)

    untold = functools.partial(tf.keras.optimizers.SGD, Halving())
    monkeypatch.setitem(networks.MORE_OPTIMIZERS, "untold", untold)
    with pytest.warns(UserWarning, match=r"Received: SGD, which does not list.*get_config"):
        train(tmp_path, fitted={"epochs": 1}, **{**CHEAP, "optimizer": "untold"})
    assert [*tmp_path.iterdir()]


def test_two_backups_of_one_training_are_refused(tmp_path):
    def keras():
        return tf.keras.callbacks.BackupAndRestore(str(tmp_path / "keras"))

    killed(tmp_path, keras(), KillAt("on_epoch_begin", 2), **CHEAP)
    with pytest.raises(ValueError, match="`Backup` and another .* begins with epoch 3"):
        train(tmp_path, keras(), **CHEAP)


class Poison(tf.keras.callbacks.Callback):
    """Makes a weight NaN at the beginning of a step, in so many epochs."""

    def __init__(self, *epochs):
        super().__init__()
        self.epochs = epochs

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch in self.epochs and batch == 3:
            bias = self.model.trainable_variables[-1]
            bias.assign(bias * np.nan)


def test_nan_stops_the_training_and_the_last_good_backup_stays(tmp_path):
    with pytest.raises(FloatingPointError, match="loss=nan in epoch 2 after 4 steps; the last"):
        train(tmp_path, Poison(1), **CHEAP)


def test_nan_is_ignored_when_asked(tmp_path):
    outcome = train(tmp_path, Poison(3), backup={"nan": "ignore"}, **CHEAP)
    assert np.isnan(outcome["history"]["loss"][3])
