from __future__ import annotations

import pytest
import tensorflow as tf
from networks import fit, mask_of, network, values
from training import UPPER, elastic, everything

from elastic_tf.model import ElasticModel


class Remember(tf.keras.callbacks.Callback):
    """Sets a mask in epoch 1, keeps a value, and may break off."""

    def __init__(self, *, breaks_at: int | None = None):
        super().__init__()
        self.breaks_at = breaks_at
        self.found = {}

    def on_epoch_begin(self, epoch, logs=None):
        self.found.setdefault(epoch, (dict(self.model.fit_state), int(self.model.mask.sum())))
        if epoch == self.breaks_at:
            raise InterruptedError
        if epoch == 1:
            self.model.set_mask(mask_of(self.model, *UPPER))
            self.model.fit_state["selected_at"] = 1


def backup(folder):
    return tf.keras.callbacks.BackupAndRestore(str(folder))


def test_an_interrupted_fit_goes_on_with_its_mask(tmp_path, deterministic):
    whole = elastic()
    fit(whole, epochs=4, callbacks=[Remember()])
    with pytest.raises(InterruptedError):
        fit(elastic(), epochs=4, callbacks=[Remember(breaks_at=3), backup(tmp_path)])

    model, again = elastic(), Remember()
    fit(model, epochs=4, callbacks=[again, backup(tmp_path)])

    assert again.found == {3: ({"selected_at": 1}, 4)}
    assert everything(model) == everything(whole)


def test_a_fit_that_starts_finds_nothing():
    model, callback = elastic(), Remember()
    fit(model, callbacks=[Remember()])
    fit(model, epochs=1, callbacks=[callback])
    assert callback.found[0] == ({}, 10)


def test_weights_that_are_loaded_leave_the_plan_alone_and_a_plain_model_reads_them(tmp_path):
    model = elastic()
    fit(model)  # which makes the state, and the slots
    model.set_mask(mask_of(model, "head"))
    model.save_weights(tmp_path / "some.weights.h5")
    model.set_mask(mask_of(model, *UPPER))
    model.load_weights(tmp_path / "some.weights.h5")
    assert model.mask.sum() == 4
    plain = tf.keras.models.clone_model(model)
    plain.load_weights(tmp_path / "some.weights.h5")
    assert values(plain.weights) == values(model.weights)


def test_a_model_that_was_not_compiled_is_saved(tmp_path):
    model = ElasticModel.from_model(network())
    model.save(tmp_path / "uncompiled.keras")
    loaded = tf.keras.models.load_model(tmp_path / "uncompiled.keras")
    assert type(loaded) is ElasticModel
    assert values(loaded.weights) == values(model.weights)


def test_weights_that_are_loaded_in_the_middle_of_a_fit_leave_the_plan_alone(tmp_path):
    path = str(tmp_path / "some.weights.h5")
    model = elastic()
    model.set_mask(mask_of(model, "head"))
    fit(model, callbacks=[tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
    other, seen = mask_of(model, *UPPER), []
    model.set_mask(other)

    def load(epoch: int, logs: dict[str, float]) -> None:
        model.load_weights(path)
        seen.append(model.mask.tolist())

    fit(model, callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=load)])
    assert seen == [other.tolist()] * 2


# Keras 3 warns of slots before
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
def test_a_mask_of_another_model_is_refused(tmp_path):
    with pytest.raises(InterruptedError):
        fit(elastic(), epochs=4, callbacks=[Remember(breaks_at=3), backup(tmp_path)])
    model = elastic()
    model.get_layer("bn1").trainable = False
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="one for 10"):
        fit(model, epochs=4, callbacks=[backup(tmp_path)])
