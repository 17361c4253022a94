from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, L, crossentropy, fit, images, network
from training import Subclassed

from elastic_tf.callback import ElasticCallback
from elastic_tf.engine import refusals
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.model import ElasticModel
from elastic_tf.timing import profiler
from elastic_tf.timing.profile import TimingProfile


def test_the_mixin_behind_the_model_is_refused():
    with pytest.raises(TypeError, match=r"class Mine\(Subclassed, ElasticMixin\)\. Write class "):

        class Mine(Subclassed, ElasticMixin):
            pass


def test_the_mixin_behind_keras_own_model_is_refused():
    with pytest.raises(TypeError, match=r"Write class Mine\(elastic_tf.ElasticMixin, Model\)"):

        class Mine(tf.keras.Model, ElasticMixin):
            pass


def test_a_mixin_of_ones_own_may_be_mixed_in_further():
    class Logging:
        pass

    class Mine(Logging, ElasticMixin, Subclassed):
        pass

    assert Mine.train_step is ElasticMixin.train_step


def test_a_subclassed_model_that_is_not_built_is_refused_before_the_first_step():
    model = ElasticModel.from_model(Subclassed())
    model.compile("sgd", crossentropy())
    ones = np.ones(6)
    profile = TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=1.0)
    with pytest.raises(ValueError, match="'subclassed.*batch"):
        fit(model, callbacks=[ElasticCallback(profile, rho=0.9, probe=images())])


class Unjittable(tf.keras.layers.Layer):
    """Calls Python, which XLA cannot compile."""

    def call(self, inputs):
        outputs = tf.numpy_function(lambda x: x, [inputs], tf.float32)
        outputs.set_shape(inputs.shape)
        return inputs + 0.0 * tf.stop_gradient(outputs)


def test_an_op_that_xla_refuses_is_named():
    inputs = L.Input((4,))
    outputs = L.Dense(CLASSES)(Unjittable()(inputs))
    model = ElasticModel.from_model(tf.keras.Model(inputs, outputs))
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match=r"the op \w*PyFunc.*jit_compile=False"):
        model.fit(np.ones((4, 4), np.float32), np.ones((4, CLASSES)), verbose=0)


def test_other_errors_are_left_as_they_are():
    with pytest.raises(tf.errors.InvalidArgumentError, match="unrelated"):
        with refusals.xla_explained(jit_compile=True):
            raise tf.errors.InvalidArgumentError(None, None, "unrelated")


def test_the_parameter_server_is_refused():
    with tf.distribute.experimental.CentralStorageStrategy(["CPU:0"]).scope():
        strategy = tf.distribute.get_strategy()
    with pytest.raises(TypeError, match="CentralStorageStrategy"):
        refusals.check_strategy(strategy)


def greedy(kind: type, *, how: str) -> type:
    """An optimizer that touches all its tensors, whatever it is given."""

    class Greedy(kind):
        def apply_gradients(self, grads_and_vars, **options):
            pairs = list(grads_and_vars)
            if how == "insists" and len(pairs) < len(self._all):
                raise IndexError("all gradients, please")
            result = super().apply_gradients(pairs, **options)
            for variable in self._all:
                variable.assign(0.9 * variable)
            return result

        def build(self, var_list):
            self._all = getattr(self, "_all", None) or list(var_list)  # called at each step
            return super().build(var_list)

    return Greedy


@pytest.mark.parametrize("how", ["decays", "insists"])
def test_an_optimizer_that_cannot_leave_tensors_out_is_refused(how):
    model = ElasticModel.from_model(network())
    with pytest.raises(TypeError, match="Greedy"):
        model.compile(greedy(tf.keras.optimizers.SGD, how=how)(0.1), "mse")


def test_an_optimizer_that_decays_the_slots_of_others_is_refused():
    class Forgetful(tf.keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars, **options):
            result = super().apply_gradients(grads_and_vars, **options)
            for slot in self.momentums:
                slot.assign(0.9 * slot + 0.1)
            return result

    model = ElasticModel.from_model(network())
    with pytest.raises(TypeError, match="Forgetful, which changes the other or its slots"):
        model.compile(Forgetful(0.1, momentum=0.9), "mse")


def test_an_optimizer_that_cannot_be_tried_is_trusted_with_a_warning():
    class Uncopied(tf.keras.optimizers.SGD):
        def __init__(self, needed):
            super().__init__(needed)

        def apply_gradients(self, grads_and_vars, **options):
            return super().apply_gradients(grads_and_vars, **options)

    model = ElasticModel.from_model(network())
    with pytest.warns(UserWarning, match="Uncopied .* could not be tried"):
        model.compile(Uncopied(0.1), "mse")


def test_an_optimizer_of_ones_own_that_can_is_served():
    class Gentle(tf.keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars, **options):
            return super().apply_gradients(grads_and_vars, **options)

    model = ElasticModel.from_model(network())
    model.compile(Gentle(0.1), crossentropy())
    fit(model)


def refused(loss: object, y: object, *, shape: tuple[int, ...] = (4, 6, 6, 2)) -> str:
    """What profiling says of a batch that does not fit."""
    model = ElasticModel.from_model(network())
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="trained on the batch") as error:
        profiler.profile_model(model, np.ones(shape, np.float32), y, repeats=1)
    assert error.value.__cause__ is not None
    return str(error.value)


def test_a_wrong_loss_is_explained_in_one_line():
    said = refused("categorical_crossentropy", np.zeros(4, int))
    assert said.startswith(
        "The model cannot be trained on the batch. Received: x of shape (4, 6, 6, 2), y of shape "
        "(4,). The reason: Shapes (4, 1) and (4, 3) are incompatible. "
    )
    assert "\n" not in said


def test_a_label_out_of_range_is_named():
    said = refused(crossentropy(), np.full(4, 7))
    assert "The reason: Received a label value of 7 which is outside the valid range" in said
    assert "[[" not in said


def test_an_input_of_another_shape_is_explained_in_one_line():
    said = refused(crossentropy(), np.zeros(4, int), shape=(4, 5, 6, 2))
    assert "expected shape=(None, 6, 6, 2), found shape=(4, 5, 6, 2). Compare the" in said


def test_a_wrong_loss_in_fit_is_explained_in_one_line():
    model = ElasticModel.from_model(network())
    model.compile("sgd", "categorical_crossentropy")
    ones = np.ones(10)
    profile = TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=1.0)
    callback = ElasticCallback(profile, rho=0.9, probe=images())
    with pytest.raises(ValueError, match=r"The reason: Shapes \(10, 1\) and") as error:
        fit(model, callbacks=[callback])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("in user code:\n\n    File 'a'\n\n    ValueError: bad shapes\n    \n", "bad shapes."),
        (
            "Exception encountered when calling layer 'd'.\n\n{{function_node __wrapped__MatMul}} "
            "sizes differ [Op:MatMul]\n\nCall arguments received by layer 'd':\n  • inputs=1",
            "sizes differ.",
        ),
        (
            "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  bad label\n\t [[{{node a}}]]\n"
            "0 successful operations.\n0 derived errors ignored. [Op:__inference_step_7]",
            "bad label.",
        ),
        ("x" * 400, "x" * 300 + "..."),
        ("", "ValueError."),
    ],
)
def test_the_reason_is_the_last_thing_that_an_error_says(said, reason):
    match = re.escape(f"The reason: {reason} Compare")
    with pytest.raises(ValueError, match=match), refusals.batch_explained(()):
        raise ValueError(said)
