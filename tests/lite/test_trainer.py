"""The runner, on a file of the real exporter."""

import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import elastic_tf as et
from elastic_tf.app.data import read_image
from elastic_tf.lite import disk, fitting, updates
from elastic_tf.lite.fitting import rate_at
from elastic_tf.lite.trainer import Trainer, main

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "lite_demo"


@pytest.fixture
def exported(tmp_path):
    for path in DEMO.glob("*"):
        if path.suffix != ".npz":
            shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def data():
    with np.load(DEMO / "digits.npz") as file:
        return file["x"][:150], file["y"][:150]


def trainer(folder):
    return Trainer(folder, interpreter=tf.lite.Interpreter, threads=1)


def test_training_learns_and_keeps_the_last_weights_that_are_as_good_as_the_best(exported, data):
    runner = trainer(exported)
    before = runner.evaluate(*data)["accuracy"]
    said = runner.fit(*data, epochs=3, validation=data, verbose=False)
    best = kept = 0.0
    for one in said:
        best = max(best, one["accuracy"])
        if one["accuracy"] >= best - 2.0 * np.sqrt(best * (1.0 - best) / len(data[1])):
            kept = one["accuracy"]
    assert runner.evaluate(*data)["accuracy"] == pytest.approx(kept) and kept > before + 0.2
    again = trainer(exported)
    again.load(exported / "trained.state")
    np.testing.assert_array_equal(again.predict(data[0]), runner.predict(data[0]))


def test_a_training_that_was_broken_off_ends_with_the_same_bits(
    exported, data, tmp_path_factory, monkeypatch
):
    whole, states = tmp_path_factory.mktemp("whole"), []
    shutil.copytree(exported, whole, dirs_exist_ok=True)
    step = fitting.Fit._step

    def broken(self, *given):
        if self._run["step"] == 13:
            raise SystemExit
        return step(self, *given)

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(fitting.Fit, "_step", broken)
        patched.setattr(fitting, "_EVERY", 0.0)
        trainer(exported).fit(*data, epochs=2, plan=0, verbose=False)
    assert trainer(exported).load(exported / "trained.state")["step"] == 13
    for folder in (exported, whole):
        runner = trainer(folder)
        said = runner.fit(*data, epochs=2, plan=0, verbose=False)
        states.append((runner.steps, [runner.weights, runner.slots]))
    assert said[-1]["epoch"] == 2 and states[0][0] == states[1][0]
    np.testing.assert_equal(states[0][1], states[1][1])


@pytest.mark.parametrize("has_room", [True, False])
def test_frozen_tensors_keep_every_bit(exported, data, has_room, monkeypatch, capsys):
    append = fitting.Rows.append

    def full(self, rows):
        if rows.ndim > 2:  # those of the head have room
            raise OSError(28, "No space left on device")
        append(self, rows)

    if not has_room:
        monkeypatch.setattr(fitting.Rows, "append", full)
    runner = trainer(exported)
    before = {index: value.copy() for index, value in runner.weights.items()}
    runner.fit(*data, epochs=3, plan=0)  # the first one is no better than the head
    assert has_room != ("No space left on device" in capsys.readouterr().out)
    changed = {k for k, old in before.items() if not np.array_equal(old, runner.weights[k])}
    assert changed == set(runner.slots) == set(runner.plans[0]["tensors"])


@pytest.mark.parametrize(
    "told",
    [
        {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
        {"momentum": 0.9, "nesterov": True, "decay": 0.01},
    ],
)
def test_updates_have_the_same_bits_in_any_number_of_threads(told):
    def updated(threads):
        generator, tensors = np.random.default_rng(0), []
        for step, size in enumerate((3, 300_000, 70_000), start=1):
            count = 2 + len(updates.slots(told, step, np.zeros(1)))
            arrays = [generator.random((size, 1), np.float32) for _ in range(count)]
            tensors.append((step, step, arrays))
        before = [arrays[0].copy() for *_, arrays in tensors]
        updates.update(told, 1e-2, tensors, threads)
        assert all((arrays[0] != old).all() for (*_, arrays), old in zip(tensors, before))
        return [one for *_, arrays in tensors for one in arrays]

    np.testing.assert_equal(updated(4), updated(1))


def test_largest_plan_that_fits_is_trained_and_a_slower_device_ends_in_time(
    exported, data, monkeypatch
):
    """The clock is one that only steps move; after 40, each takes ten times as long."""
    clock, plans = [0.0], []
    step = Trainer.step

    def slow(self, plan, *given, **options):
        plans.append(plan)
        clock[0] += (0.1, 0.2, 0.4)[plan] * (10.0 if len(plans) > 40 else 1.0)
        return step(self, plan, *given, **options)

    monkeypatch.setattr(Trainer, "step", slow)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(fitting.time, name, lambda: clock[0])
    runner = trainer(exported)
    said = runner.fit(*data, epochs=10, seconds=60.0, verbose=False)
    assert {one["plan"] for one in said[1:]} == {2}
    assert 50.0 < said[-1]["seconds"] <= 60.0
    plans[:] = [0] * 41  # slow from the beginning
    said = trainer(exported).fit(*data, epochs=9, seconds=80.0, verbose=False)
    assert {one["plan"] for one in said[1:]} == {0} and said[-1]["seconds"] <= 80.0


def test_weights_that_are_constants_in_a_file_are_those_of_now(exported, data):
    runner = trainer(exported)
    assert runner.model["constants"]["infer"] and runner.model["constants"]["features_0"]
    before = runner.predict(data[0])
    runner.step(2, runner.batch(*data, slice(16)), 0.01)
    state = exported / "other.state"
    runner.save(state)
    after = runner.predict(data[0])
    other = trainer(exported)
    np.testing.assert_array_equal(other.predict(data[0]), before)
    other.load(state)
    np.testing.assert_array_equal(other.predict(data[0]), after)
    assert abs(after - before).max() > 1e-3


def test_head_equals_that_of_the_library_and_stays_where_training_harms(exported, data):
    runner = trainer(exported)
    features = np.concatenate(list(runner.features(runner.model["head"]["features"], data[0])))
    dense = tf.keras.Sequential([tf.keras.Input(features.shape[1:]), tf.keras.layers.Dense(10)])
    dense.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    et.solve_head(dense, features, data[1])
    runner.fit(*data, seconds=1e-6, verbose=False)  # no time for a step
    solved = runner.predict(data[0])
    np.testing.assert_allclose(solved, dense(features), atol=1e-4)
    first, last = runner.fit(*data, epochs=1, rate=0.5, verbose=False)
    assert last["loss"] > first["loss"]
    np.testing.assert_array_equal(runner.predict(data[0]), solved)
    assert not list(exported.glob("*.best"))


def test_another_training_has_class_names_of_its_own(exported, tmp_path_factory):
    for name in ("one", "two"):
        for k in range(3):
            folder = tmp_path_factory.getbasetemp() / name / f"{name}_{k}"
            folder.mkdir(parents=True)
            Image.fromarray(np.full((32, 32), 80 * k, np.uint8)).save(folder / "image.png")
        runner = trainer(exported)
        runner.fit(folder.parent, epochs=1 if name == "one" else 2, plan=0, verbose=False)
        assert runner.class_names == [f"{name}_{k}" for k in range(3)]


def test_rate_is_that_of_the_library():
    schedule = et.optimizers.cosine(3e-3, 40, warm_up=0.15)
    ours = [rate_at(3e-3, step, 40) for step in range(40)]
    np.testing.assert_allclose(ours, [schedule(step) for step in range(40)], rtol=1e-5)


@pytest.mark.parametrize("name", ["train_0.tflite", "model.json", "weights.state"])
def test_damaged_folder_is_refused(exported, name):
    content = bytearray((exported / name).read_bytes())
    content[len(content) // 2 : len(content) // 2 + 9] = b"\x00" * 9
    (exported / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"(model\.json|weights\.state).*Copy it again"):
        trainer(exported)
    (exported / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}.*again"):
        trainer(exported)


def test_damaged_state_is_refused_and_stays(exported, data):
    runner, path = trainer(exported), exported / "trained.state"
    runner.save(path)
    path.write_bytes(held := path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"trained\.state.*zip"):
        runner.fit(*data, verbose=False)
    assert path.read_bytes() == held


@pytest.mark.parametrize(
    "change, options, message",
    [
        (lambda x, y: (x[:, :16], y), {}, "150, 16, 32, 1"),
        (lambda x, y: (x / 255.0, y), {}, "from 0.0 to 1.0"),
        (lambda x, y: (x, y + 5), {}, "0 to 9.*150"),
        (lambda x, y: (x, y[:-1]), {}, "149.*150"),
        (lambda x, y: (x, y * 0), {}, "two classes.*150 of class 0"),
        (lambda x, y: (x, y), {"epochs": 0}, "epochs=0"),
        (lambda x, y: (x, y), {"seconds": -1.0}, "seconds=-1.0"),
        (lambda x, y: (x, y), {"plan": 9}, "plan=9"),
    ],
)
def test_what_does_not_fit_is_refused(exported, data, change, options, message):
    with pytest.raises(ValueError, match=message):
        trainer(exported).fit(*change(*data), **options, verbose=False)


def test_images_are_those_of_the_library_but_for_rounding(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    ours = disk.read_image(tmp_path / "one.png", (32, 32, 3)).astype(int)
    assert abs(ours - read_image(str(tmp_path / "one.png"), 32)).max() <= 1


def test_folder_with_a_damaged_image_or_one_class_is_refused(exported, tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    (root / "cats").mkdir()
    (root / "cats" / "one.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="1 of cats"):
        trainer(exported).fit(root)
    (root / "dogs").mkdir()
    with pytest.raises(ValueError, match="none of them empty.*0 of dogs"):
        trainer(exported).fit(root)
    shutil.copy(root / "cats" / "one.jpg", root / "dogs")
    with pytest.raises(ValueError, match=r"one\.jpg"):
        trainer(exported).fit(root)


def test_predict_says_what_images_show_before_and_after_fit(exported, data, monkeypatch, capsys):
    module = types.SimpleNamespace(Interpreter=tf.lite.Interpreter)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", types.SimpleNamespace(interpreter=module))
    paths = [exported / f"{k}.png" for k in range(2)]
    for path, image in zip(paths, data[0]):
        Image.fromarray(image[..., 0]).save(path)
    (exported / "bad.png").write_bytes(b"no image")

    def said(runner, *given):
        code = main(["--model", str(exported), "predict", *map(str, given)])
        found = capsys.readouterr()
        best = [str(row.argmax()) for row in runner.predict(data[0][:2])]
        lines = [line.split(": ")[1].split()[0] for line in found.out.splitlines()]
        return code, lines == best, found.err

    before = trainer(exported)
    assert said(before, *paths) == (0, True, "")
    code, is_same, errors = said(before, paths[0], exported / "bad.png", paths[1])
    assert code == 1 and is_same and "bad.png" in errors
    before.fit(*data, epochs=1, verbose=False)
    assert said(before, *paths) == (0, True, "")
