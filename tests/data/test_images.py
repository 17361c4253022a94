"""Listing and decoding folders of image files."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.data import images

RED, GREEN = (200, 10, 10), (10, 200, 10)
ENCODERS = {
    "jpg": lambda pixels: tf.io.encode_jpeg(pixels, quality=100).numpy(),
    "jpeg": lambda pixels: tf.io.encode_jpeg(pixels, quality=100).numpy(),
    "png": lambda pixels: tf.io.encode_png(pixels).numpy(),
    "bmp": lambda pixels: bitmap(pixels),
}
# One pixel, white, on a palette of black and white.
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00"
    b"\x00\x02\x02L\x01\x00;"
)


def plain(colour: tuple[int, ...], size: int = 12) -> np.ndarray:
    return np.full((size, size, len(colour)), colour, np.uint8)


def bitmap(pixels: np.ndarray) -> bytes:
    """A Windows bitmap of 24 bits per pixel; rows end at a multiple of four bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(row[:, ::-1].tobytes() + bytes(-len(row.tobytes()) % 4) for row in pixels[::-1])
    start = b"BM" + np.array([54 + len(rows), 0, 54, 40], "<u4").tobytes()
    shape = np.array([width, height], "<i4").tobytes() + np.array([1, 24], "<u2").tobytes()
    return start + shape + bytes(24) + rows


def write_folder(root, classes=("green", "red"), counts=(3, 2), extension="png"):
    """ROOT/train and ROOT/test with images of one colour for each class."""
    colours = dict(zip(classes, (GREEN, RED, (10, 10, 200))))
    for part, count in zip(("train", "test"), counts):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                content = ENCODERS[extension](plain(colours[name]))
                (folder / f"{index}.{extension}").write_bytes(content)
    return root


def load(root, **options):
    train, test, names = images.list_parts(root)
    options = {"keep": True, "skip_bad": False, **options}
    return images.load_parts((train, test), names, 8, **options)


def test_list_parts_finds_files_and_labels(tmp_path):
    train, test, names = images.list_parts(write_folder(tmp_path))
    assert names == ("green", "red")
    assert [path.split("/")[-2:] for path in train.paths[2:4]] == [
        ["green", "2.png"],
        ["red", "0.png"],
    ]
    np.testing.assert_array_equal(train.labels, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(test.labels, [0, 0, 1, 1])


def test_list_parts_passes_over_hidden_files_and_files_beside_the_classes(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "train" / "red" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "labels.csv").write_text("0,green")
    assert len(images.list_parts(tmp_path)[0].paths) == 6


@pytest.mark.parametrize("extension", sorted(ENCODERS))
def test_decode_reads_format(extension):
    decoded = images.decode(tf.constant(ENCODERS[extension](plain(RED))), 8).numpy()
    assert decoded.shape == (8, 8, 3) and decoded.dtype == np.uint8
    # JPEG keeps colours to a few levels.
    np.testing.assert_allclose(decoded.astype(int), plain(RED, 8), atol=3)


def test_decode_takes_a_gif():
    assert images.decode(tf.constant(GIF), 4).shape == (4, 4, 3)


@pytest.mark.parametrize("colour", [(90,), (200, 10, 10, 255)], ids=["grey", "transparent"])
def test_decode_gives_rgb_of_other_channels(colour):
    decoded = images.decode(tf.io.encode_png(plain(colour)), 8).numpy()
    np.testing.assert_array_equal(decoded, plain((colour * 3)[:3], 8))


def test_decode_keeps_pixels_when_the_size_is_right():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    np.testing.assert_array_equal(images.decode(tf.io.encode_png(pixels), 8), pixels)


def test_load_parts_keeps_pixels(tmp_path):
    parts, pixels, skipped = load(write_folder(tmp_path))
    assert skipped == ()
    assert pixels[0].shape == (6, 8, 8, 3) and pixels[1].shape == (4, 8, 8, 3)
    np.testing.assert_array_equal(pixels[0][3], plain(RED, 8))
    np.testing.assert_array_equal(parts[0].labels, [0, 0, 0, 1, 1, 1])


def test_load_parts_keeps_nothing_when_not_asked_to(tmp_path):
    assert load(write_folder(tmp_path), keep=False)[1] == [None, None]


NOISE = ENCODERS["jpg"](np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
BAD = {
    "text": (b"no image", "of another kind"),
    "empty": (b"", "empty"),
    "header cut off": (NOISE[:400], "[Jj][Pp][Ee][Gg]"),
    "pixels cut off": (NOISE[:-1000], "[Jj][Pp][Ee][Gg]"),
}


@pytest.mark.parametrize("kind", sorted(BAD))
def test_load_parts_names_a_file_that_is_no_image(tmp_path, kind):
    content, reason = BAD[kind]
    (write_folder(tmp_path) / "train" / "red" / "1b.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=f"red/1b.jpg'.*{reason}"):
        load(tmp_path)


@pytest.mark.parametrize("kind", sorted(BAD))
def test_load_parts_trains_on_the_rest_when_told_so(tmp_path, kind):
    bad = write_folder(tmp_path) / "train" / "green" / "0b.jpg"
    bad.write_bytes(BAD[kind][0])
    parts, pixels, skipped = load(tmp_path, skip_bad=True)
    assert skipped == (str(bad),)
    np.testing.assert_array_equal(parts[0].labels, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(pixels[0][2], plain(GREEN, 8))
    np.testing.assert_array_equal(pixels[0][3], plain(RED, 8))


def test_load_parts_refuses_a_folder_in_a_class(tmp_path):
    (write_folder(tmp_path) / "test" / "red" / "more").mkdir()
    with pytest.raises(ValueError, match="red/more': it is a folder"):
        load(tmp_path)


def test_load_parts_refuses_a_class_that_lost_all_images(tmp_path):
    for file in (write_folder(tmp_path) / "test" / "red").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(ValueError, match="class 'red' of which no file in .*test/red"):
        load(tmp_path, skip_bad=True)


def test_list_parts_refuses_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere', which is not there"):
        images.list_parts(tmp_path / "nowhere")


def test_list_parts_refuses_a_file(tmp_path):
    (tmp_path / "file.zip").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="file.zip', which is a file"):
        images.list_parts(tmp_path / "file.zip")


def test_list_parts_refuses_an_empty_folder(tmp_path):
    with pytest.raises(ValueError, match="holds no folder"):
        images.list_parts(tmp_path)


def test_list_parts_tells_what_a_folder_without_train_and_test_holds(tmp_path):
    (tmp_path / "cats").mkdir()
    (tmp_path / "dogs").mkdir()
    with pytest.raises(ValueError, match="holds 'cats', 'dogs'"):
        images.list_parts(tmp_path)


def test_list_parts_refuses_a_class_without_a_file(tmp_path):
    for file in (write_folder(tmp_path) / "train" / "red").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="class 'red' without a file in .*train/red"):
        images.list_parts(tmp_path)


@pytest.mark.parametrize(("part", "other"), [("train", "test"), ("test", "train")])
def test_list_parts_refuses_classes_that_differ(tmp_path, part, other):
    (write_folder(tmp_path) / part / "blue").mkdir()
    with pytest.raises(ValueError, match=f"'blue' in '{part}' and not in '{other}'"):
        images.list_parts(tmp_path)


def test_list_parts_refuses_a_single_class(tmp_path):
    with pytest.raises(ValueError, match="one, 'red'"):
        images.list_parts(write_folder(tmp_path, classes=("red",)))
