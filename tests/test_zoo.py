"""Every model of the zoo through the same checks, and weights that fit or do not."""

import os
import warnings
from pathlib import Path

import h5py
import numpy as np
import pretrain_digits
import pytest
import tensorflow as tf
from networks import L, half_precision

from elastic_tf import stack
from elastic_tf.app import data, zoo
from elastic_tf.model import ElasticModel

# of the weights of MobileNet in Keras 3
pytestmark = pytest.mark.filterwarnings("ignore:`input_shape` is undefined or non-square")

CLASSES = 5
SMALL = ("mobilenet", "digits_resnet")
BIG = tuple(
    pytest.param(name, marks=pytest.mark.hours)
    for name in ("mobilenet_v2", "resnet50", "vgg16", "efficientnet_v2b0", "vit_ti16", "vit_b16")
)
ASSETS = Path(os.environ.get("ELASTIC_TF_ASSETS", Path(__file__).parents[2] / "shared" / "assets"))
MOBILENET_WEIGHTS = ASSETS / "weights" / "mobilenet_0.75_224_no_top.weights.h5"


def build(name: str = "digits_resnet", **options) -> tf.keras.Model:
    small = {"alpha": 0.25} if name == "mobilenet" else {}
    return zoo.build(name, **{"classes": CLASSES, "input_size": 32, **small, **options})


def batch(model: tf.keras.Model, size: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (size, *model.input_shape[1:])).astype("float32")
    return x, np.arange(size) % CLASSES


def same(one: tf.keras.Model, other: tf.keras.Model) -> list[bool]:
    return [*map(np.array_equal, one.get_weights(), other.get_weights())]


def save_weights(model: tf.keras.Model, path: Path) -> None:
    """A file of weights; in the older format, which Keras 2 alone writes, by its ending."""
    if path.name.endswith(".weights.h5"):
        return model.save_weights(path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name for layer in model.layers]
        for layer in model.layers:
            group, weights = file.create_group(layer.name), layer.get_weights()
            names = [f"{layer.name}/{k}:0" for k in range(len(weights))]
            group.attrs["weight_names"] = names
            for name, weight in zip(names, weights):
                group[name] = weight
    return None


@pytest.fixture(autouse=True)
def seeded():
    tf.keras.utils.set_random_seed(0)


@pytest.mark.parametrize("name", [*SMALL, *BIG])
def test_every_model_trains_its_last_third_and_nothing_else(name):
    model = ElasticModel.from_model(build(name))
    assert type(model) is ElasticModel
    assert not any(isinstance(layer, tf.keras.Model) for layer in model.layers)
    assert model.output_shape == (None, CLASSES)
    count = len(model.tensors)
    assert [tensor.name for tensor in model.tensors[-2:]] == ["head/kernel:0", "head/bias:0"]
    np.testing.assert_array_equal(zoo.head_tensors(model).nonzero()[0], [count - 2, count - 1])

    before = [tensor.numpy() for tensor in model.tensors]
    mask = np.arange(count) >= count * 2 // 3
    model.set_mask(mask)
    model.compile(
        tf.keras.optimizers.SGD(0.1),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = batch(model)
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"]).all()
    changed = [not np.array_equal(a, b.numpy()) for a, b in zip(before, model.tensors)]
    assert not any(np.array(changed)[~mask])
    assert changed[-1]


def test_registry_lists_the_models_by_name():
    assert set(zoo.NAMES) == {*SMALL, *(parameter.values[0] for parameter in BIG)}


@pytest.fixture
def tiny(monkeypatch):
    """Makes one network of the zoo tiny: how weights are read does not depend on its size."""

    def backbone(inputs, _, alpha):
        x = L.Conv2D(int(8 * alpha), 3, strides=2, use_bias=False, name="stem_conv")(inputs)
        return L.BatchNormalization(name="stem_bn")(x)

    whole = zoo.ARCHITECTURES["digits_resnet"]._replace(backbone=backbone, takes_alpha=True)
    monkeypatch.setitem(zoo.ARCHITECTURES, "digits_resnet", whole)


@pytest.mark.parametrize("bn_training", [False, True])
def test_normalisation_keeps_its_statistics_unless_told(tiny, bn_training):
    model = build(bn_training=bn_training)
    before, (x, _) = model.get_weights(), batch(model)
    training, inference = model(x, training=True).numpy(), model(x, training=False).numpy()
    moved = not all(map(np.array_equal, before, model.get_weights()))
    assert moved is bn_training
    assert np.array_equal(training, inference) is not bn_training
    assert any("gamma" in tensor.name for tensor in stack.trainable(model))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_normalisation_keeps_its_statistics_in_a_loaded_model(tmp_path, tiny, suffix):
    model, path = build(), tmp_path / f"model{suffix}"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are saving your model as an HDF5 file")
        model.save(path)
    loaded, (x, _) = tf.keras.models.load_model(path, compile=False), batch(model)
    np.testing.assert_array_equal(loaded(x, training=True), model(x, training=False))
    if suffix == ".h5":  # of a whole model, which serves as a file of weights
        assert all(same(build(weights=path), model))


@pytest.mark.parametrize(("name", "layer"), [("mobilenet", "to_unit_range"), ("vgg16", "to_caffe")])
def test_preprocessing_is_the_one_of_keras(name, layer):
    model = build(name)
    inside = tf.keras.Model(model.input, model.get_layer(layer).output)
    x, _ = batch(model)
    expected = getattr(tf.keras.applications, name).preprocess_input(x.copy())
    np.testing.assert_allclose(inside(x), expected, atol=1e-5)


def test_logits_are_float32_under_mixed_precision(tiny):
    with half_precision():
        model = build()
    assert model.output.dtype == tf.float32
    assert model.layers[-2].compute_dtype == "float16"


@pytest.mark.hours
@pytest.mark.parametrize("suffix", [".weights.h5", ".h5"])
def test_weights_of_a_vision_transformer_come_back(tmp_path, suffix):
    saved, path = build("vit_ti16"), tmp_path / f"whole{suffix}"
    save_weights(ElasticModel.from_model(saved), path)
    assert all(same(build("vit_ti16", weights=path), saved))


@pytest.mark.parametrize("suffix", [".weights.h5", ".h5"])
def test_weights_go_into_what_they_fit(tmp_path, tiny, suffix):
    saved = build(bn_training=True)
    whole, bare, wide = (tmp_path / f"{name}{suffix}" for name in ("whole", "bare", "wide"))
    save_weights(ElasticModel.from_model(saved), whole)
    assert all(same(build(weights=whole), saved))
    of_others = build(classes=7, weights=whole)
    assert all(same(of_others, saved)[:-2]) and of_others.output_shape == (None, 7)
    save_weights(tf.keras.Model(saved.input, saved.get_layer("stem_bn").output), bare)
    with_head = build(weights=bare)
    assert all(same(with_head, saved)[:-2]) and with_head.get_weights()[-2].std() > 0
    save_weights(build(alpha=0.5), wide)
    with pytest.raises(ValueError, match=r"(?s)first difference: .*stem_conv.*\(3, 3, 1, 2\).*4\)"):
        build(alpha=0.25, weights=wide)


def test_missing_or_broken_weight_files_are_named(tmp_path, tiny):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.h5"):
        build(weights=tmp_path / "nowhere.h5")
    broken = tmp_path / "broken.weights.h5"
    broken.write_bytes(b"not an HDF5 file")
    with pytest.raises(ValueError, match=r"broken\.weights\.h5.*cannot be read"):
        build(weights=broken)
    build().save_weights(tmp_path / "right.weights.h5")
    (tmp_path / "right.weights.h5").rename(tmp_path / "renamed.h5")
    with pytest.raises(ValueError, match=r"renamed\.h5.*named \*\.weights\.h5"):
        build(weights=tmp_path / "renamed.h5")
    model = build()
    more = L.Dense(3)(L.Dense(4)(model.output))
    save_weights(tf.keras.Model(model.input, more), tmp_path / "deeper.h5")
    with pytest.raises(ValueError, match="layers with weights in the file"):
        build(weights=tmp_path / "deeper.h5")


def test_imagenet_says_what_to_do_when_the_download_fails(monkeypatch):
    def fail(*_, **__):
        raise Exception("URL fetch failure on https://example.org/w.h5: None -- no network")

    monkeypatch.setattr(f"{tf.keras.utils.get_file.__module__}.get_file", fail)
    with pytest.raises(
        OSError, match=r"'mobilenet' could not be downloaded.*give a file as `weights`"
    ):
        build("mobilenet", weights="imagenet")
    with pytest.raises(ValueError, match="no ImageNet weights for 'digits_resnet'"):
        build(weights="imagenet")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet18"}, "mobilenet, mobilenet_v2, .*digits_resnet.*name='resnet18'"),
        ({"name": "mobilnet"}, "name='mobilnet'. Did you mean 'mobilenet'?"),
        ({"classes": 1}, "`classes`.*Received: 1"),
        ({"input_size": 8}, "`input_size`.*at least 16.*Received: 8.*'digits_resnet'"),
        ({"name": "vit_ti16", "input_size": 40}, "multiple of 16.*Received: 40"),
        ({"alpha": 0.5}, "`alpha` scales mobilenet and mobilenet_v2 only.*alpha=0.5"),
        ({"name": "mobilenet", "alpha": 0}, "`alpha`.*above 0 and at most 4.*alpha=0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(**{"name": "digits_resnet", **options})


def test_head_is_the_layer_of_the_last_tensor_in_a_wrapped_model(tiny):
    class Nested(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.first = build()
            self.last = L.Dense(2)

        def call(self, inputs):
            return self.last(self.first(inputs))

    nested = Nested()
    nested(np.zeros((1, 32, 32, 1), "float32"))
    model = ElasticModel.from_model(nested)
    assert zoo.head_tensors(model).tolist() == [False] * 5 + [True] * 2


@pytest.mark.skipif(not MOBILENET_WEIGHTS.is_file(), reason=f"no real weights in {ASSETS}")
@pytest.mark.slow
def test_frozen_features_of_real_weights_tell_flowers_apart():
    model = build("mobilenet", input_size=128, alpha=0.75, weights=MOBILENET_WEIGHTS)
    features = tf.keras.Model(model.input, model.layers[-2].output)
    parts = []
    for part in ("train", "test"):
        folders = sorted((ASSETS / "data" / "flowers5" / part).iterdir())
        files = [file for folder in folders for file in sorted(folder.iterdir())[:10]]
        images = [tf.io.decode_jpeg(file.read_bytes(), channels=3) for file in files]
        images = [tf.image.resize(image, (128, 128), antialias=True) for image in images]
        vectors = features.predict(tf.stack(images), batch_size=20, verbose=0)
        labels = np.repeat(np.arange(len(folders)), 10)
        parts.append((np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1), labels))
    (x, y), (x_test, y_test) = parts
    # Ridge regression on one-hot labels; more features than images, so solved in its dual form.
    kernel = x @ x.T + 10.0 * np.eye(len(x))
    scores = x_test @ x.T @ np.linalg.solve(kernel, np.eye(CLASSES)[y])
    assert np.mean(scores.argmax(axis=1) == y_test) > 0.6  # chance is 0.2


@pytest.mark.hours
def test_pretraining_writes_weights_that_the_demo_can_load(tmp_path):
    path = tmp_path / "new" / "digits.weights.h5"
    accuracy = pretrain_digits.main(["--epochs", "1", "--out", str(path), "--quiet"])
    _, test = data.digits()
    batches = data.from_arrays(test, test, batch_size=32).test
    # batch normalisation on its stored statistics, as the demo uses it
    model = zoo.build("digits_resnet", classes=10, input_size=32, weights=path)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    found = model.evaluate(batches, verbose=0, return_dict=True)["accuracy"]
    assert found == pytest.approx(accuracy)


def test_pretraining_writes_where_the_demo_reads():
    assert pretrain_digits.WEIGHTS.is_file()
    assert pretrain_digits.WEIGHTS.stat().st_size < 2_000_000
