import pretrain_digits
import pytest

import elastic_tf as et


@pytest.mark.hours
def test_pretraining_writes_weights_that_the_demo_can_load(tmp_path):
    path = tmp_path / "new" / "digits.weights.h5"
    accuracy = pretrain_digits.main(["--epochs", "1", "--out", str(path), "--quiet"])
    _, test = et.data.digits()
    data = et.data.from_arrays(test, test, batch_size=32).test
    # batch normalisation on its stored statistics, as the demo uses it
    model = et.zoo.build("digits_resnet", classes=10, input_size=32, weights=path)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    assert model.evaluate(data, verbose=0, return_dict=True)["accuracy"] == pytest.approx(accuracy)


def test_pretraining_writes_where_the_demo_reads():
    assert pretrain_digits.WEIGHTS.is_file()
    assert pretrain_digits.WEIGHTS.stat().st_size < 2_000_000
