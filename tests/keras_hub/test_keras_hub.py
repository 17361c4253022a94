"""Networks of KerasHub, tiny and random: masks keep every bit, and fine-tuning serves them."""

import numpy as np
import pytest
import tensorflow as tf
from networks import values

import elastic_tf as et
from elastic_tf import stack

if stack.KERAS_VERSION.startswith("2."):
    pytest.skip("KerasHub has no version for Keras 2", allow_module_level=True)
hub = pytest.importorskip("keras_hub").models

CLASSES, COUNT = 3, 24


def resnet(classes=CLASSES):
    backbone = hub.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(16, 16, 3),
    )
    return hub.ResNetImageClassifier(backbone=backbone, num_classes=classes)


def vit(classes=CLASSES):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    backbone = hub.ViTBackbone(image_shape=(16, 16, 3), patch_size=(4, 4), **sizes)
    return hub.ViTImageClassifier(backbone=backbone, num_classes=classes)


def bert(classes=CLASSES, kind=hub.BertTextClassifier):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    backbone = hub.BertBackbone(vocabulary_size=30, max_sequence_length=8, **sizes)
    return kind(backbone=backbone, num_classes=classes, preprocessor=None)


def data(make):
    rng, y = np.random.default_rng(0), np.arange(COUNT) % CLASSES
    if make is not bert:
        x = rng.normal(0.0, 1.0, (COUNT, 16, 16, 3)).astype(np.float32)
        x[np.arange(COUNT), :, :, y] += 3.0
        return x, y
    ids = rng.integers(1, 10, (COUNT, 8)) + 10 * (y[:, None] % 2)
    return {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }, y


class ElasticBert(et.ElasticMixin, hub.BertTextClassifier):
    """As `from_model`, with its preprocessor."""


@pytest.mark.parametrize("make", [resnet, vit, bert])
def test_a_mask_trains_its_tensors_and_no_other(make):
    tf.keras.utils.set_random_seed(0)
    model = make(kind=ElasticBert) if make is bert else et.ElasticModel.from_model(make())
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-2), loss=loss)
    mask = np.arange(len(model.tensors)) >= len(model.tensors) - 4
    model.set_mask(mask)
    before = values(model.tensors)
    assert np.isfinite(model.fit(*data(make), verbose=0).history["loss"]).all()
    changed = [a != b for a, b in zip(before, values(model.tensors))]
    assert not any(np.array(changed)[~mask])
    assert all(changed[-2:])


@pytest.mark.slow
@pytest.mark.parametrize(("make", "classes"), [(resnet, CLASSES), (bert, 7)])
def test_finetune_gives_it_a_head_where_it_has_another(make, classes):
    tf.keras.utils.set_random_seed(0)
    x, y = data(make)
    network = make(classes)
    if classes != CLASSES:  # its outputs are logits: what tells a classifier from an embedding
        network.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = et.finetune(network, (x, y), seconds=300, epochs=1, verbose=0)
    assert model.output_shape == (None, CLASSES)
    assert model.evaluate(x, y, verbose=0)[1] > 0.5  # chance is 0.33
