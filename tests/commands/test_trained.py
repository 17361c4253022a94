"""The commands that use what was trained."""

import base64
import dataclasses
import html
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from tiny_runs import TRAINING, residual, smaller

import elastic_tf as et
from elastic_tf.app import export as litert
from elastic_tf.app import runs
from elastic_tf.app.commands import export, report, train, trained
from elastic_tf.files import to_ranges


@pytest.fixture(scope="module")
def run(elastic):
    return elastic[0]


@pytest.fixture(scope="module")
def pretrained(arrays, run, tmp_path_factory):
    """A training that began with the weights of another."""
    out, weights = tmp_path_factory.mktemp("runs") / "pretrained", run.path / "model.weights.h5"
    more = f"--method traditional_tl --validation 0 --data {arrays} --out {out}"
    words = [*TRAINING.split(), *more.split()]
    return train.train([*words, "--weights", str(weights)])


@pytest.fixture(scope="module")
def files(arrays, tmp_path_factory):
    """A folder with the four test images, one below, and a file that is no image."""
    folder = tmp_path_factory.mktemp("images") / "a folder"
    (folder / "below").mkdir(parents=True)
    names = ("a.png", "b.png", "c.png", "below/d.png")
    for name, image in zip(names, np.load(arrays)["x_test"]):
        (folder / name).write_bytes(tf.io.encode_png(image).numpy())
    (folder / "e.jpg").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def images(arrays):
    return np.load(arrays)["x_test"].astype(np.float32)


def probabilities(run, images):
    return tf.nn.softmax(trained.load(run.path).network()(images)).numpy()


def test_evaluate_finds_what_train_found(run, capsys):
    found = trained.evaluate(["--run", str(run.path)])
    assert found["accuracy"] == run.result["accuracy"]
    assert found["loss"] == pytest.approx(run.result["loss"], rel=1e-4)
    first, *confusions = capsys.readouterr().out.splitlines()
    assert first.startswith(f"accuracy {found['accuracy']:.1%}, loss {found['loss']:.4f}, of 4 ")
    wrong = sum(int(re.search(r": (\d+) of 2$", line)[1]) for line in confusions)
    assert wrong == round(4 * (1 - found["accuracy"]))
    held_out = trained.evaluate(["--run", str(run.path), "--part", "validation"])
    assert held_out["accuracy"] == run.result["validation_accuracy"]


def confused(run, x, y, tmp_path):
    """What a run says of these images, as a file of arrays, and the file."""
    path = tmp_path / "others.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return trained.judged(trained.load(run.path), str(path)), path


def test_mistakes_are_counted_and_the_worst_are_shown(run, arrays, tmp_path, capsys):
    """Against an independent count, of labels drawn at random."""
    rng = np.random.default_rng(0)
    x = np.load(arrays)["x_train"]
    y = rng.permutation(np.arange(len(x)) % 2)
    found, path = confused(run, x, y, tmp_path)
    p = probabilities(run, x.astype(np.float32))
    said, losses = p.argmax(axis=1), -np.log(p[np.arange(len(y)), y])
    for a in range(2):
        for b in range(2):
            assert found.counts[a, b] == np.sum((y == a) & (said == b))
    assert found.accuracy == pytest.approx(np.mean(said == y))
    assert found.loss == pytest.approx(losses.mean(), rel=1e-4)
    wrong = np.flatnonzero(said != y)
    worst = wrong[np.argsort(-losses[wrong], kind="stable")][:10]
    np.testing.assert_allclose([one.loss for one in found.worst], losses[worst], rtol=1e-4)
    assert all((one.right, one.found) == (y[one.number], said[one.number]) for one in found.worst)
    for one in found.worst:
        np.testing.assert_array_equal(one.image, x[one.number])
    trained.evaluate(["--run", str(run.path), "--data", str(path), "--out", str(tmp_path / "new")])
    assert {one.name for one in (tmp_path / "new").iterdir()} == {"confusion.png", "mistakes.png"}
    assert "confusion.png" in capsys.readouterr().out


def test_a_page_holds_all_there_is_to_say_of_a_training(run, tmp_path):
    path = report.report(["--run", str(run.path), "--out", str(tmp_path / "page.html")])
    page = path.read_text("utf-8")
    assert f"accuracy {run.result['accuracy']:.1%}" in page
    head, now = run.history[0]["head_accuracy"], run.result["validation_accuracy"]
    assert f"The head alone, on validation images: {head:.1%}" in page
    assert f"Now, on validation images: {now:.1%}" in page
    folder = html.escape(shlex.quote(str(run.path)))
    assert f"elastic-tf predict --run {folder} IMAGE_OR_FOLDER" in page
    pictures = re.findall('src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) >= 3  # accuracy, what was trained, confusion
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures)
    assert "src=" not in re.sub('src="data:[^"]*"', "", page) and "http" not in page
    tags = re.findall(r"</?(h1|h2|p|pre|html|style|title)\b", page)
    assert all(tags.count(tag) % 2 == 0 for tag in tags)


def made(path, more=None, **settings):
    """A finished run of three epochs."""
    run = runs.create(path, {"seed": 0, "method": "elastic", "validation": 0.1, **settings})
    for epoch in range(3):
        mask = np.arange(4) >= 1 + epoch % 2
        told = {"val_accuracy": 0.5 + 0.1 * epoch, "seconds": 10.0, "tensors": 4}
        first = {} if epoch else {"head_seconds": 2.0, "head_accuracy": 0.4}
        run.append_epoch({**told, "trained": to_ranges(mask), **first})
    run.finish(more or {"training_seconds": 30.0, "validation_accuracy": None})
    return run


def test_a_run_is_drawn_over_seconds_with_a_map_of_what_was_trained(tmp_path):
    kept = {"training_seconds": 30.0, "head_seconds": 5.0, "validation_accuracy": 0.75}
    curve, trained_when = report.pictures(made(tmp_path, kept)).values()
    (axes,) = curve.axes
    assert axes.get_ylabel() == "validation accuracy (%)"
    expected = [[2, 40], [12, 50], [22, 60], [32, 70], [35, 75]]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), expected)
    image = trained_when.axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, [[0, 0, 0], [1, 0, 1], [1, 1, 1], [1, 1, 1]])


def test_accuracy_on_the_test_images_is_called_so(tmp_path):
    curve = report.pictures(made(tmp_path, validation=0.0))["accuracy over seconds"]
    assert curve.axes[0].get_ylabel() == "test accuracy (%)"
    assert len(curve.axes[0].lines[0].get_xydata()) == 4


def test_evaluate_refuses_other_classes_and_a_part_that_is_not_there(run, pretrained):
    with pytest.raises(
        ValueError, match=r"of the run, \['0', '1'\].*'digits' with \['0', '1', '2'"
    ):
        trained.evaluate(["--run", str(run.path), "--data", "digits"])
    with pytest.raises(ValueError, match="part='validation' of a run with validation=0"):
        trained.evaluate(["--run", str(pretrained.path), "--part", "validation"])


def test_all_images_of_another_folder_without_parts_are_evaluated(run, arrays, tmp_path):
    """Of the folder that was trained on, those that were not."""
    with np.load(arrays) as found:
        x, y = found["x_train"], found["y_train"]
    for number, (image, label) in enumerate(zip(x, y)):
        (tmp_path / "flat" / f"{label}").mkdir(parents=True, exist_ok=True)
        path = tmp_path / "flat" / f"{label}" / f"{number}.png"
        path.write_bytes(tf.io.encode_png(image).numpy())
    found_run = trained.load(run.path)
    found = trained.judged(found_run, str(tmp_path / "flat"))
    said = probabilities(run, x.astype(np.float32)).argmax(axis=1)
    assert found.counts.sum() == len(x) and found.accuracy == pytest.approx(np.mean(said == y))
    own = found_run._replace(
        settings=dataclasses.replace(found_run.settings, data=str(tmp_path / "flat"))
    )
    with pytest.raises(ValueError, match="read as RGB"):  # as by `train`, which leaves a fifth out
        trained.judged(own, str(tmp_path / "flat"))


def test_what_is_no_finished_training_is_refused(run, tmp_path):
    for path in run.path.glob("*.json*"):
        if path.name != "result.json":
            shutil.copy(path, tmp_path)
    with pytest.raises(ValueError, match="has no result. With the same options"):
        trained.load(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match="which another program wrote"):
        trained.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        trained.load(tmp_path / "nowhere")


def test_predict_names_the_classes_of_each_image_and_those_it_cannot_read(
    run, files, images, capsys
):
    with pytest.raises(SystemExit, match="1"):
        trained.predict([str(files), "--run", str(run.path), "--top", "2"])
    said = capsys.readouterr()
    assert said.err.startswith("error: An image file must be") and "e.jpg" in said.err
    assert said.err.count("\n") == 1
    rows = dict(zip(("a.png", "b.png", "c.png", "below/d.png"), probabilities(run, images)))
    lines = dict(line.rsplit(": ", 1) for line in said.out.splitlines())
    assert list(lines) == [str(files / name) for name in ("a.png", "b.png", "below/d.png", "c.png")]
    for name, row in rows.items():
        best = int(row.argmax())
        assert lines[str(files / name)].startswith(f"{best} {row[best]:.1%}, {1 - best} ")


def test_predict_writes_lines_that_programs_read(run, files, images, tmp_path, capsys):
    trained.predict(["--json", "--top", "1", "--run", str(run.path), str(files / "a.png")])
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == str(files / "a.png")
    assert list(found["classes"].values()) == pytest.approx([probabilities(run, images)[0].max()])
    with pytest.raises(ValueError, match=f"Received: '{tmp_path}', which holds no file"):
        trained.predict([str(tmp_path), "--run", str(run.path)])


@pytest.mark.slow
def test_exports_load_where_there_is_no_elastic_tf(run, images, tmp_path):
    names = ["model", "model.h5", "model.keras"]
    for name in names:
        export.export(["--run", str(run.path), "--to", str(tmp_path / name)])
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".md") == names
    np.save(tmp_path / "x.npy", images)
    code = (
        "import sys; sys.modules['elastic_tf'] = None\n"
        "import numpy as np, tensorflow as tf\n"
        f"for name in {names}:\n"
        "    load = tf.keras.models.load_model if '.' in name else tf.saved_model.load\n"
        "    loaded = load(name)\n"
        "    model = loaded if '.' in name else loaded.serve\n"
        "    np.save(f'{name}.npy', model(np.load('x.npy').astype('float32')))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    expected = trained.load(run.path).network()(images)
    for name in names:
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantize", "error", "share"),
    # float16 rounds each weight by up to 5e-4 of itself, and logits by as much of the largest
    [("none", 1e-4, 0.0), ("float16", 0.0, 1e-3), ("dynamic", 0.2, 0.0)],
)
def test_tflite_gives_what_the_model_gives(quantize, error, share, run, images, tmp_path):
    to = tmp_path / "deep" / "model.tflite"
    export.export(["--run", str(run.path), "--to", str(to), "--quantize", quantize])
    with zipfile.ZipFile(to) as file:
        assert file.read("labels.txt").decode().splitlines() == ["0", "1"]
    card = to.with_name("model.tflite.md").read_text("utf-8")
    assert card.startswith("# model.tflite\n") and "0. 0\n1. 1\n" in card
    assert f"{run.result['accuracy']:.1%} of the test images" in card
    interpreter = tf.lite.Interpreter(model_path=str(to))
    interpreter.allocate_tensors()
    (entry,), (end,) = interpreter.get_input_details(), interpreter.get_output_details()
    for image, expected in zip(images, trained.load(run.path).network()(images).numpy()):
        interpreter.set_tensor(entry["index"], image[None])
        interpreter.invoke()
        found, most = interpreter.get_tensor(end["index"])[0], float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=error + share * most)


def test_a_delta_turns_the_network_it_began_with_into_the_trained_one(pretrained, run, tmp_path):
    export.export(["--run", str(pretrained.path), "--to", str(tmp_path / "delta.safetensors")])
    weights = run.path / "model.weights.h5"
    model = et.zoo.build("digits_resnet", classes=2, input_size=16, weights=weights)
    et.load_delta(model, tmp_path / "delta.safetensors")
    expected = trained.load(pretrained.path).network().get_weights()
    np.testing.assert_equal(model.get_weights(), expected)


def test_a_folder_that_trains_has_the_classes_and_the_rate_of_the_run(run, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(litert, "litert", lambda *given, **options: made.append((given, options)))
    words = ["--to", str(tmp_path / "board"), "--trains", "--batch-size", "1"]
    export.export(["--run", str(run.path), *words])
    ((model, to), options) = made[0]
    assert to == tmp_path / "board"
    assert options == {"batch_size": 1, "class_names": ["0", "1"]}
    assert float(model.optimizer.learning_rate) == pytest.approx(1e-3 / 2)  # of batches of 4


@pytest.mark.parametrize(
    ("words", "received"),
    [
        ("--to model.onnx", "Received: 'model.onnx'"),
        ("--to model.h5 --quantize float16", "quantize=float16 for 'model.h5'"),
        ("--to .", "'.', which is there already"),
        ("--to model.tflite --trains", "Received: 'model.tflite'. Leave out '.tflite'"),
        ("--to delta.safetensors", "weights=none, method=elastic_loss"),
    ],
)
def test_what_cannot_be_exported_is_refused(words, received, run):
    with pytest.raises(ValueError, match=received):
        export.export(["--run", str(run.path), *words.split()])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Every step runs the whole forward pass")
@pytest.mark.parametrize(
    "method", [pytest.param("related:tinytl", marks=pytest.mark.hours), "related:prunetrain"]
)
def test_a_network_that_its_method_changed_is_built_again(method, arrays, tmp_path):
    given = f"{TRAINING} --method {method} --data {arrays} --out {tmp_path} --epochs 1".split()
    to = ["--run", str(tmp_path), "--to", str(tmp_path / "model.keras")]
    with smaller(residual):
        loss = train.train(given).result["loss"]
        assert trained.evaluate(to[:2])["loss"] == pytest.approx(loss, rel=1e-4)
        if method == "related:tinytl":
            with pytest.raises(ValueError, match="'related:tinytl' for .*model.keras"):
                export.export(to)
            return
        export.export(to)
    assert tf.keras.models.load_model(to[-1], compile=False).output_shape
