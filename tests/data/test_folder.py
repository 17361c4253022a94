"""Folders of image files: what is read, and what is refused by name."""

import io
import os

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from elastic_tf.app import data

SIZE = 8
RED, GREEN = (200, 10, 10), (10, 200, 10)


def plain(colour: tuple[int, ...], size: int = 12) -> np.ndarray:
    return np.full((size, size, len(colour)), colour, np.uint8)


# Red left, green right: an image that is turned or mixed up is seen.
HALVES = np.concatenate([plain(RED)[:, :6], plain(GREEN)[:, :6]], axis=1)


def encoded(pixels: np.ndarray, kind: str = "PNG", mode: str = "RGB", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def animated(kind: str) -> bytes:
    """Two frames, the first one of two halves."""
    second = Image.fromarray(plain((0, 0, 255)))
    return encoded(HALVES, kind, save_all=True, append_images=[second], duration=100)


JPEG = encoded(HALVES, "JPEG", quality=100, subsampling=0)


def write_folder(root, classes=("green", "red"), counts=(3, 2)):
    """ROOT/train and ROOT/test with images of one colour for each class."""
    for part, count in zip(("train", "test"), counts):
        for name, colour in zip(classes, (GREEN, RED)):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                (root / part / name / f"{index}.png").write_bytes(encoded(plain(colour)))
    return root


def read(root, keep=True, **options):
    """The folder, as it is read where its images fit into memory, or do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "fits_memory", lambda *_: keep)
        return data.image_folder(root, **{"image_size": SIZE, "batch_size": 4, **options})


def test_a_folder_gives_batches_of_its_images(tmp_path):
    found = read(write_folder(tmp_path))
    assert found.class_names == ("green", "red") and found.classes == 2
    assert (found.train_count, found.test_count, found.steps_per_epoch) == (6, 4, 1)
    assert found.train.element_spec[0].shape == (4, SIZE, SIZE, 3) and found.skipped == ()
    x, y = next(iter(found.test))
    assert x.dtype == "float32" and y.dtype == "int64"
    np.testing.assert_array_equal(y, [0, 0, 1, 1])
    np.testing.assert_array_equal(x, [plain(GREEN, 8)] * 2 + [plain(RED, 8)] * 2)


def test_a_folder_yields_the_same_whether_it_fits_memory_or_not(tmp_path):
    write_folder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 14, 3), np.uint8)
    for index in range(3):
        content = encoded(np.roll(pixels, index, axis=0))
        (tmp_path / "train" / "red" / f"{index}.png").write_bytes(content)
    kept, from_files = (read(tmp_path, one, augment=("rotate", "flip")) for one in (True, False))
    for first, second in zip(kept.train.repeat(3), from_files.train.repeat(3)):
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[1], second[1])


def test_a_fifth_of_each_class_is_for_tests_where_a_folder_has_no_parts(tmp_path):
    for name, count in (("green", 10), ("red", 15)):
        (tmp_path / name).mkdir()
        for index in range(count):
            picture = plain((20 * index, 7, 7), 8)
            (tmp_path / name / f"{index}.png").write_bytes(encoded(picture))
    found, again = (read(tmp_path, seed=0) for _ in range(2))
    assert (found.train_count, found.test_count) == (20, 5)
    first, second = (
        [(image[0, 0, 0], label) for x, y in one.test for image, label in zip(x.numpy(), y.numpy())]
        for one in (found, again)
    )
    assert first == second and [label for _, label in first] == [0, 0, 1, 1, 1]
    trained = {(image[0, 0, 0], y) for image, y in found.images.as_numpy_iterator()}
    assert len(trained | set(first)) == 25
    other = read(tmp_path, seed=1)
    assert [image[0, 0, 0] for x, _ in other.test for image in x.numpy()] != [x for x, _ in first]


def test_files_of_systems_and_beside_the_classes_are_passed_over(tmp_path):
    root = write_folder(tmp_path)
    for name in ("Thumbs.db", "desktop.ini", "._0.png", ".DS_Store"):
        (root / "train" / "red" / name).write_bytes(b"x")
    (root / "train" / "__MACOSX").mkdir()
    (root / "train" / "labels.csv").write_text("0,green")
    assert read(root).train_count == 6


KINDS = {
    "JPEG": JPEG,
    "PNG": encoded(HALVES),
    "BMP": encoded(HALVES, "BMP"),
    "GIF": encoded(HALVES, "GIF"),
    "CMYK": encoded(HALVES, "JPEG", "CMYK", quality=100, subsampling=0),
    "progressive": encoded(HALVES, "JPEG", quality=100, progressive=True),
    "transparent": encoded(HALVES, mode="RGBA"),
    "animated GIF": animated("GIF"),
    "animated PNG": animated("PNG"),
    "with words": encoded(HALVES, "JPEG", quality=100, subsampling=0, comment=b"x" * 60_000),
}


def test_images_of_every_kind_are_decoded_under_any_name(tmp_path):
    root = write_folder(tmp_path)
    for kind, content in KINDS.items():
        (root / "test" / "green" / f"a {kind}.dat").write_bytes(content)
    seen = [image for x, _ in read(root).test for image in x.numpy()]
    for kind, image in zip(sorted(KINDS), seen[2:]):
        np.testing.assert_allclose(image[:, :3], plain(RED, 8)[:, :3], atol=45, err_msg=kind)
        np.testing.assert_allclose(image[:, 5:], plain(GREEN, 8)[:, 5:], atol=45, err_msg=kind)


BAD = {
    "text.png": (b"no image", "Unknown image file format"),
    "empty.png": (b"", "Unknown image file format|empty"),
    "cut.png": (encoded(HALVES)[:-30], "PNG"),
    "cut.jpg": (JPEG[:-40], "[Jj][Pp][Ee][Gg]"),
    "cut.gif": (animated("GIF")[:-60], "[Gg][Ii][Ff]"),
    "cut.bmp": (encoded(HALVES, "BMP")[:-100], "Input size should match"),
}


@pytest.mark.filterwarnings("default")
def test_what_cannot_be_decoded_is_refused_by_name(tmp_path):
    where = write_folder(tmp_path) / "test" / "red"
    for name, (content, reason) in BAD.items():
        (where / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"test/red/{name}': .*({reason})"):
            read(tmp_path)
        (where / name).unlink()


@pytest.mark.filterwarnings("default")
def test_what_cannot_be_decoded_is_left_out_when_told_so(tmp_path):
    bad = write_folder(tmp_path) / "train" / "green"
    for name, (content, _) in BAD.items():
        (bad / name).write_bytes(content)
    for keep in (True, False):
        found = read(tmp_path, keep, on_bad_image="skip", batch_size=6)
        assert [path.split("/")[-1] for path in found.skipped] == sorted(BAD)
        ((x, y),) = found.train
        assert sorted(y.numpy()) == [0, 0, 0, 1, 1, 1]
        np.testing.assert_array_equal(x[y == 1], [plain(RED, 8)] * 3)


def test_special_files_are_refused_and_not_waited_for(tmp_path):
    where = write_folder(tmp_path) / "train" / "red"
    (where / "endless.png").symlink_to("/dev/zero")
    (where / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(where / "pipe.png")
    with open(where / "large.bmp", "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    reasons = {
        "endless.png": "no regular file",
        "gone.png": "No such file",
        "large.bmp": "larger than 256 MiB",
        "pipe.png": "no regular file",
    }
    assert len(read(tmp_path, on_bad_image="skip").skipped) == len(reasons)
    for name, reason in reasons.items():
        with pytest.raises(ValueError, match=f"red/{name}': .*{reason}"):
            read(tmp_path)
        (where / name).unlink()


ODD = [
    *("a\nb.png", "-rf", "\U0001f600.png", "a'b\"c.png", "\x1b[2J.png", "%s {x}.png", " .png"),
    os.fsdecode(b"\xff\xfe.png"),
]


def test_odd_names_are_read_and_can_be_printed(tmp_path):
    where = write_folder(tmp_path) / "train" / "red"
    for name in ODD:
        (where / name).write_bytes(encoded(plain(RED)))
    for keep in (True, False):
        assert read(tmp_path, keep, batch_size=14).train_count == 14
    for name in ODD:
        (where / name).write_bytes(b"no image")
        with pytest.raises(ValueError, match=r"train/red/.*Unknown image") as refused:
            read(tmp_path)
        assert str(refused.value).isprintable()
        str(refused.value).encode("utf-8")
        (where / name).unlink()


def test_what_is_no_folder_of_classes_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere', which is not there"):
        read(tmp_path / "nowhere")
    (tmp_path / "file.zip").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="file.zip', which is a file"):
        read(tmp_path / "file.zip")
    (tmp_path / "cats").mkdir()
    with pytest.raises(ValueError, match="Received: 0 in both, .* holds .'cats'."):
        read(tmp_path)
    with pytest.raises(ValueError, match="or CLASS/ alone. Received: 1 in both"):
        read(write_folder(tmp_path / "single", classes=("red",)))


def test_classes_that_differ_are_refused(tmp_path):
    (write_folder(tmp_path) / "train" / "blue").mkdir()
    with pytest.raises(ValueError, match="'blue'. in 'train' alone"):
        read(tmp_path)


def test_a_class_without_an_image_is_refused(tmp_path):
    for file in (write_folder(tmp_path) / "test" / "red").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(ValueError, match="image to test. Received: class 'red' of .* without one"):
        read(tmp_path, on_bad_image="skip")


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"image_size": 8.0}, "`image_size`.*Received: 8.0"),
        ({"on_bad_image": "ignore"}, "raise, skip. Received: on_bad_image='ignore'"),
    ],
)
def test_settings_are_refused_before_anything_is_decoded(tmp_path, monkeypatch, options, received):
    monkeypatch.setattr(tf.io, "decode_image", None)
    with pytest.raises(ValueError, match=received):
        read(write_folder(tmp_path), **options)
