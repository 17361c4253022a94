import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from networks import L, values

import elastic_tf as et
from elastic_tf import fine_tuning, stack
from elastic_tf.choose.budget import course
from elastic_tf.train.engine import prefix
from elastic_tf.train.head import targets

CLASSES, COUNT = 3, 48


def images(*, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a brighter channel for each class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, COUNT)
    x = rng.normal(0.0, 1.0, (COUNT, 6, 6, CLASSES)).astype(np.float32)
    x[np.arange(COUNT), :, :, y] += 2.0
    return x, y


def features(end: str = "map") -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, CLASSES))
    x = L.Conv2D(8, 3, strides=2, padding="same", activation="relu", name="one")(inputs)
    x = L.Conv2D(8, 1, activation="relu", name="two")(x)
    if end == "map":
        return tf.keras.Model(inputs, x)
    x = L.Flatten()(x)
    if end == "vector":
        return tf.keras.Model(inputs, x)
    units, activation = end.split()
    return tf.keras.Model(inputs, L.Dense(int(units), activation=activation, name="old")(x))


def test_batch_normalisation_keeps_its_statistics():
    network = tf.keras.Sequential([L.Input((6, 6, CLASSES)), L.BatchNormalization(), L.Flatten()])
    statistics, scale = values(network.non_trainable_variables), values(network.trainable_variables)
    model = et.finetune(network, images(), seconds=300, epochs=1, verbose=0)
    assert values(network.non_trainable_variables) == statistics
    assert values(network.trainable_variables) != scale
    assert model.get_compile_config()["statistics"] == "stored"


def test_dropout_and_augmentation_of_the_network_stay():
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, CLASSES))
    x = L.Dropout(0.5)(L.Flatten()(L.RandomFlip()(L.GaussianNoise(1.0)(inputs))))
    with pytest.warns(UserWarning, match="draws at random, or looks words up, at its very input"):
        model = et.finetune(tf.keras.Model(inputs, x), images(), seconds=300, epochs=2, verbose=0)
    x, y = map(tf.constant, images())
    assert np.ptp([model.forward((x, y)).loss for _ in range(3)]) > 0.0


@pytest.mark.parametrize("end", ["map", "7 softmax"])
def test_a_network_of_other_classes_gets_a_new_head_and_learns(end, capsys):
    network = features(end)
    model = et.finetune(network, images(), images(seed=1), seconds=300, epochs=2, verbose=0)
    assert capsys.readouterr().out == ""
    assert model.layers[-1].name == "new_head"
    assert model.output_shape == (None, CLASSES)
    _, accuracy = model.evaluate(*images(seed=2), verbose=0)
    assert accuracy > 0.8
    shared = {id(tensor) for tensor in model.tensors}
    assert all(id(tensor) in shared for tensor in stack.weights(network.get_layer("one")))


@pytest.mark.parametrize("end", ["3 softmax", "3 linear"])
def test_a_network_of_as_many_classes_keeps_its_head(end):
    network = features(end)
    model = et.finetune(network, images(), seconds=300, epochs=1, verbose=0)
    assert model.tensors[-1] is stack.raw(network.layers[-1].bias)
    assert model.loss.get_config()["from_logits"] == (end == "3 linear")
    assert np.isfinite(model.history.history["loss"]).all()


@pytest.mark.parametrize(("kind", "steps"), [("list", 3), ("samples", 6), ("batches", 3)])
def test_labels_in_a_column_are_those_in_a_row_or_in_a_list(kind, steps, measured):
    (x, y), (x_held, y_held) = images(), images(seed=1)
    weight, found = np.linspace(0.5, 2.0, COUNT).astype(np.float32), []
    for shape in ((COUNT,), (COUNT, 1)):
        numbers = y.reshape(shape)
        dataset = tf.data.Dataset.from_tensor_slices((x, numbers))
        train = {
            "list": (x, numbers if found else numbers.tolist()),
            "samples": et.Samples(x, numbers, sample_weight=weight, batch_size=8),
            "batches": dataset.batch(5),
        }[kind]
        held = x_held, y_held.reshape(shape)
        if kind == "batches":
            held = tf.data.Dataset.from_tensor_slices(held).batch(7)
        options = {"seconds": 300, "epochs": 1, "verbose": 0}
        options["profile"] = measured if kind == "batches" else None
        model = et.finetune(features("vector"), train, held, **options)
        assert model.history.params["steps"] == steps
        found.append((values(model.weights), model.history.history["val_accuracy"]))
    assert found[0] == found[1]


def test_what_is_kept_is_computed_by_the_pass_that_foretold_it(monkeypatch):
    made, given = prefix.Forward.__init__, []

    def counted(self, *args, **options):
        given.append(self)
        made(self, *args, **options)

    monkeypatch.setattr(prefix.Forward, "__init__", counted)
    et.finetune(features(), images(), seconds=300, epochs=2, verbose=0)
    assert len(given) == 1


@pytest.mark.parametrize("kind", ["single", "weighted and one-hot", "lists", "has samples"])
def test_data_come_as_for_fit(kind):
    x, y = images()
    one_hot = np.eye(CLASSES, dtype=np.float32)[y]
    train = {
        "single": tf.data.Dataset.from_tensor_slices((x, y)),
        "weighted and one-hot": (x, one_hot, np.ones(COUNT, np.float32)),
        "lists": (x.tolist(), y.tolist()),
        "has samples": SimpleNamespace(samples=lambda: et.Samples(x, y, batch_size=16)),
    }[kind]
    model = et.finetune(features("vector"), train, seconds=300, epochs=1, verbose=0)
    assert model.history.params["steps"] == 3
    assert model.output_shape == (None, CLASSES)


def test_a_profile_spares_the_prior(tmp_path, monkeypatch, measured):
    path = str(tmp_path / "profile.json")
    measured.save(path)
    monkeypatch.setattr(course, "prior_profile", None)  # is not called
    options = {"seconds": 300, "epochs": 1, "verbose": 0}
    model = et.finetune(features("vector"), images(), profile=path, **options)
    assert np.isfinite(model.history.history["loss"]).all()
    with pytest.raises(ValueError, match="profile of batch size 16, data of batch size 8"):
        et.finetune(features("vector"), images(), batch_size=8, profile=measured)
    with pytest.raises(ValueError, match="The profile has 6 tensors, the model has 4"):
        et.finetune(tf.keras.Sequential(features().layers[:2]), images(), profile=measured)


def test_the_rate_is_the_one_that_the_documentation_names():
    options = {"seconds": 300, "epochs": 1, "verbose": 0}
    own = et.finetune(features("vector"), images(), **options)  # there is time for everything
    given = et.finetune(features("vector"), images(), learning_rate=3.5e-4, **options)
    assert values(own.weights) == values(given.weights)


@pytest.mark.parametrize("end", ["7 linear", "7 relu", "3 relu"])
def test_an_embedding_at_the_end_is_kept_as_features(end, capsys):
    model, has_logits = targets.with_head(features(end), CLASSES, "softmax", verbose=True)
    assert model.layers[-1].input.shape == (None, int(end[0])) and has_logits
    said = "The 7 outputs of 'old' are taken for features. To replace that layer, give"
    assert (said in capsys.readouterr().out) == (end == "7 linear")


def compiled(network, loss):
    network.compile(loss=loss)
    return network


def followed(end, *layers):
    network = features(end)
    return tf.keras.Model(network.input, tf.keras.Sequential(layers)(network.output))


@pytest.mark.parametrize(
    "network",
    [
        lambda: features("3 sigmoid"),
        lambda: features("1 sigmoid"),
        lambda: features("7 softmax"),
        lambda: compiled(features("7 linear"), "sparse_categorical_crossentropy"),
        lambda: compiled(features("1 linear"), tf.keras.losses.BinaryCrossentropy(True)),
        lambda: followed("1 linear", L.Activation("sigmoid")),
        lambda: followed("7 linear", L.Softmax(), L.Activation("linear", dtype="float32")),
        lambda: followed("7 linear", L.Activation(tf.nn.softmax)),
    ],
)
def test_a_classifier_of_others_gets_a_new_linear_head(network, capsys):
    model, has_logits = targets.with_head(network(), CLASSES, "softmax", verbose=True)
    assert has_logits and capsys.readouterr().out == ""
    head = model.layers[-1]
    assert head.activation is tf.keras.activations.linear
    assert head.input.shape == (None, 72) and head.units == CLASSES  # what 'old' was given


def test_inputs_that_are_scaled_otherwise_than_in_pre_training_are_warned_of():
    x, y = images()
    inputs, normal = L.Input(x.shape[1:]), L.BatchNormalization()
    before = L.Conv2D(4, 3)(inputs)
    model = tf.keras.Model(inputs, L.Flatten()(normal(before)))
    seen = tf.keras.Model(inputs, before)(x).numpy()
    normal.moving_mean.assign(seen.mean((0, 1, 2)))
    normal.moving_variance.assign(seen.var((0, 1, 2)))
    fine_tuning._check_inputs(model, et.Samples(x, y))  # a warning is an error
    with pytest.warns(UserWarning, match="unlike .* deviations from the mean, where 1 is usual"):
        et.finetune(model, (255.0 * x, y), seconds=300, epochs=1, verbose=0)


def brightness() -> tuple[np.ndarray, np.ndarray]:
    """Images and the mean of each channel."""
    x, _ = images()
    return x, x.mean(axis=(1, 2))


def test_values_are_learned_by_their_squared_errors(capsys):
    x, y = brightness()
    model = et.finetune(features("vector"), (x, y), (x, y), seconds=300, epochs=2)
    assert isinstance(model.loss, tf.keras.losses.MeanSquaredError)
    assert model.output_shape == (None, CLASSES)
    assert model.evaluate(x, y, verbose=0) < 0.2 * y.var()
    assert "Head loss " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("end", "metrics"),  # which do not know of each other, but for logits
    [("vector", None), ("3 linear", "accuracy"), ("3 sigmoid", ["binary_accuracy"])],
)
def test_labels_that_go_together_are_told_one_by_one(end, metrics):
    x, y = brightness()
    labels = (y > 0.5).astype(int)
    labels[:2] = [[0], [1]]  # none, and all
    network = features(end)
    options = {"seconds": 300, "epochs": 2, "verbose": 0, "metrics": metrics}
    model = et.finetune(network, (x, labels), (x, labels), **options)
    assert isinstance(model.loss, tf.keras.losses.BinaryCrossentropy)
    assert model.loss.get_config()["from_logits"] == (end != "3 sigmoid")
    assert (model.layers[-1].name == "new_head") == (end == "vector")
    threshold = 0.5 if end == "3 sigmoid" else 0.0
    right = (model.predict(x, verbose=0) > threshold) == labels
    found = model.evaluate(x, labels, verbose=0, return_dict=True)
    name = "accuracy" if metrics in (None, "accuracy") else metrics[0]
    assert found[name] == pytest.approx(right.mean()) and right.mean() > 0.8


@pytest.mark.parametrize("loss", ["mae", "huber"])
def test_whole_numbers_are_values_where_the_loss_says_so(loss):
    x, y = images()
    given = {"loss": loss, "metrics": ["mse"], "seconds": 300, "epochs": 1, "verbose": 0}
    model = et.finetune(features("vector"), (x, y + 1), **given)
    assert model.output_shape == (None, 1)
    assert set(model.evaluate(x, y + 1, verbose=0, return_dict=True)) == {"loss", "mse"}


@pytest.mark.parametrize(
    "loss",
    [
        tf.keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        tf.keras.losses.CategoricalFocalCrossentropy(),
    ],
)
def test_a_crossentropy_of_ones_own_takes_the_logits_of_the_new_head(loss):
    x, y = images()
    rows = x, np.eye(CLASSES)[y]
    model = et.finetune(features("vector"), rows, rows, loss=loss, seconds=300, verbose=0)
    assert model.loss.get_config() == {**loss.get_config(), "from_logits": True}
    assert model.evaluate(*rows, verbose=0, return_dict=True)["accuracy"] > 0.8


@pytest.mark.parametrize("seconds", [1e-3, 300])
def test_seconds_in_which_nothing_can_be_trained_leave_the_solved_head(seconds, measured):
    slow = dataclasses.replace(measured, t_forward=1e6 * measured.t_forward)
    options = {"seconds": seconds, "profile": slow if seconds > 1 else None, "verbose": 0}
    with pytest.warns(UserWarning, match=rf"Received: {seconds:g}\..*The head alone was solved"):
        model = et.finetune(features("vector"), images(), images(), **options)
    assert model.evaluate(*images(), verbose=0)[1] > (0.8 if seconds > 1 else 0.5)
    assert not model.optimizer.iterations.numpy()


@pytest.fixture(scope="module")
def measured():
    """A profile of `finetune`'s network."""
    x, y = images()
    model = et.finetune(features("vector"), (x, y), seconds=300, epochs=1, verbose=0)
    return et.profile_model(model, x[:16], y[:16], repeats=2)


def test_a_layer_inside_another_model_is_not_named_as_one_to_ask_for(capsys):
    for inner in (False, True):
        network = features("2 linear")
        if inner:
            network = tf.keras.Sequential([L.Input((6, 6, CLASSES)), network])
        targets.with_head(network, CLASSES, "softmax", verbose=True)
        said = capsys.readouterr().out
        assert ("get_layer('old')" in said) != inner
        assert ("give the network that was made before it" in said) == inner
