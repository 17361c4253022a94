"""Files that are odd, broken or made to do harm, in a folder of images."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageSequence
from test_images import GREEN, RED, load, plain, write_folder

from elastic_tf.data import datasets, image_sizes, images

SIZE = 8
# Red left, green right: an image that is turned or mixed up is seen.
HALVES = np.concatenate([plain(RED, 12)[:, :6], plain(GREEN, 12)[:, :6]], axis=1)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def frames(kind: str) -> bytes:
    """Two frames, the first one of two halves."""
    first = Image.fromarray(HALVES)
    second = Image.fromarray(plain((0, 0, 255), 12))
    return encoded(first, kind, save_all=True, append_images=[second], duration=100)


def png(width: int, height: int, pixels: bytes, *, bits: int = 8, colour: int = 2) -> bytes:
    """A PNG that claims to be of that size, whatever pixels it has."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    rows = zlib.compress(pixels, 9)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def sixteen_bits() -> bytes:
    rows = (HALVES.astype(">u2") * 257).reshape(12, -1)
    return png(12, 12, b"".join(b"\x00" + row.tobytes() for row in rows), bits=16)


def deep_grey() -> bytes:
    grey = np.repeat(HALVES[..., :1].astype(np.uint16) * 257, 1, axis=2)[..., 0]
    return encoded(Image.fromarray(grey), "PNG")


JPEG = encoded(Image.fromarray(HALVES), "JPEG", quality=100, subsampling=0)
DECODED = {
    "CMYK": encoded(Image.fromarray(HALVES).convert("CMYK"), "JPEG", quality=100, subsampling=0),
    "progressive": encoded(Image.fromarray(HALVES), "JPEG", quality=100, progressive=True),
    "16 bits": sixteen_bits(),
    "palette": encoded(Image.fromarray(HALVES).quantize(4), "PNG"),
    "animated GIF": frames("GIF"),
    "animated PNG": frames("PNG"),
    "with a profile and words": encoded(
        Image.fromarray(HALVES), "JPEG", quality=100, subsampling=0, comment=b"x" * 60_000
    ),
}


@pytest.mark.parametrize("kind", sorted(DECODED))
def test_odd_images_are_decoded_right(tmp_path, kind):
    (write_folder(tmp_path) / "train" / "green" / "00.dat").write_bytes(DECODED[kind])
    _, pixels, _ = load(tmp_path)
    seen = pixels[0][1].astype(int)  # after 0.png, before 1.png
    np.testing.assert_allclose(seen[:, :3], plain(RED, SIZE)[:, :3], atol=45)
    np.testing.assert_allclose(seen[:, 5:], plain(GREEN, SIZE)[:, 5:], atol=45)


def test_deep_grey_keeps_its_upper_bits(tmp_path):
    (write_folder(tmp_path) / "train" / "green" / "00.png").write_bytes(deep_grey())
    seen = load(tmp_path)[1][0][1]
    np.testing.assert_allclose(seen[:, :3], np.full((SIZE, 3, 3), RED[0]), atol=25)


def test_wrong_extensions_do_not_matter(tmp_path):
    root = write_folder(tmp_path)
    for file in (root / "train" / "red").iterdir():
        file.rename(file.with_suffix(".jpeg"))
    np.testing.assert_array_equal(load(root)[1][0][3], plain(RED, SIZE))


def bomb() -> bytes:
    """A PNG of 20 KB for 4.3 gigabytes of pixels."""
    return png(60_000, 24_000, bytes(10_000_000))


def long_animation() -> bytes:
    """A GIF of many frames that are as large as the screen and hold next to nothing."""
    gif = frames("GIF")
    with Image.open(io.BytesIO(gif)) as image:
        assert len(list(ImageSequence.Iterator(image))) == 2
    screen = struct.pack("<HH", 8000, 8000)
    start = gif.index(b",")
    frame = b"," + bytes(4) + screen + b"\x00\x02\x02L\x01\x00"
    return b"GIF89a" + screen + gif[10:start] + frame * 50 + b";"


REFUSED = {
    "bomb.png": (bomb, r"stands for 1440000000 pixels"),
    "claims.png": (lambda: png(2**31 - 1, 2**31 - 1, b""), r"stands for \d+ pixels"),
    "claims.bmp": (lambda: b"BM" + bytes(12) + struct.pack("<III", 40, 2**30, 2**30), "stands for"),
    "claims.jpg": (
        lambda: (
            JPEG[: JPEG.index(b"\xff\xc0") + 5]
            + b"\xff\xdc\xff\xdc"
            + JPEG[JPEG.index(b"\xff\xc0") + 9 :]
        ),
        "stands for 4290250000 pixels",
    ),
    "frames.gif": (long_animation, "stands for"),
    "cut_frames.gif": (lambda: long_animation()[:-1], "stands for"),
    "empty.png": (bytes, "it is empty"),
    "nothing.png": (lambda: png(0, 0, b""), "PNG"),
    "cut.png": (lambda: sixteen_bits()[:-30], "PNG"),
    "cut.jpg": (lambda: JPEG[:-40], "[Jj][Pp][Ee][Gg]"),
    "cut.gif": (lambda: frames("GIF")[:-60], "[Gg][Ii][Ff]"),
    "cut.bmp": (lambda: encoded(Image.fromarray(HALVES), "BMP")[:-100], "Input size should match"),
    "picture.webp": (
        lambda: encoded(Image.fromarray(HALVES), "WEBP"),
        "of another kind",
    ),
    "picture.tif": (
        lambda: encoded(Image.fromarray(HALVES), "TIFF"),
        "of another kind",
    ),
    "picture.svg": (
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "of another kind",
    ),
    "pickle.png": (lambda: b"cos\nsystem\n(S'true'\ntR.", "of another kind"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_decoded_is_refused_by_name(tmp_path, name):
    make, reason = REFUSED[name]
    (write_folder(tmp_path) / "test" / "red" / name).write_bytes(make())
    with pytest.raises(ValueError, match=f"test/red/{name}': .*{reason}"):
        load(tmp_path, keep=False)


def test_special_files_are_refused_and_not_waited_for(tmp_path):
    folder = write_folder(tmp_path) / "train" / "red"
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "endless.png").symlink_to("/dev/zero")
    (folder / "gone.png").symlink_to("nowhere.png")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe.png")
    _, _, skipped = load(tmp_path, skip_bad=True)
    names = [path.split("/")[-1] for path in skipped]
    assert names == ["endless.png", "gone.png", "loop.png", "pipe.png", "up"]
    for name, reason in {
        "endless.png": "no regular file",
        "gone.png": "No such file",
        "loop.png": "Too many levels",
        "pipe.png": "no regular file",
        "up": "a folder",
    }.items():
        assert reason in images._decode_file(str(folder / name), SIZE)


def test_a_class_that_is_a_loop_is_refused(tmp_path):
    (write_folder(tmp_path) / "train" / "again").symlink_to("..")
    (tmp_path / "test" / "again").symlink_to("..")
    with pytest.raises(ValueError, match=r"train/again/test': it is a folder"):
        load(tmp_path)


ODD = ["a\nb.png", "-rf", "\U0001f600.png", "a'b\"c.png", "\x1b[2J.png", "%s {x}.png", " .png"]


@pytest.mark.parametrize("cache", [True, False])
def test_odd_names_are_read(tmp_path, cache):
    folder = write_folder(tmp_path) / "train" / "red"
    content = (folder / "0.png").read_bytes()
    for name in [*ODD, os.fsdecode(b"\xff\xfe.png")]:
        (folder / name).write_bytes(content)
    data = datasets.image_folder(tmp_path, image_size=SIZE, batch_size=14, cache=cache)
    assert data.train_count == 14
    x, y = next(iter(data.train))
    np.testing.assert_array_equal(x.numpy()[y.numpy() == 1], [plain(RED, SIZE)] * 11)


@pytest.mark.parametrize("name", [*ODD, os.fsdecode(b"\xff\xfe.png")])
def test_odd_names_can_be_printed_when_they_are_refused(tmp_path, name):
    (write_folder(tmp_path) / "train" / "red" / name).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"train/red/.*of another kind") as refused:
        load(tmp_path, keep=False)
    assert str(refused.value).isprintable()
    str(refused.value).encode("utf-8")


def test_a_class_whose_name_is_no_text_is_refused(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    for part in ("train", "test"):
        (write_folder(tmp_path / "data", (part,), (1, 1)) / part / name).mkdir()
    with pytest.raises(ValueError, match=r"UTF-8. Received: a folder named b'caf\\xe9'"):
        images.list_parts(tmp_path / "data")


def test_files_of_other_systems_are_passed_over(tmp_path):
    root = write_folder(tmp_path)
    for name in ("Thumbs.db", "desktop.ini", "._0.png", ".DS_Store"):
        (root / "train" / "red" / name).write_bytes(b"x")
    (root / "train" / "__MACOSX").mkdir()
    train, _, names = images.list_parts(root)
    assert names == ("green", "red")
    assert len(train.paths) == 6


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.bmp"
    with open(path, "wb") as file:
        file.write(b"BM")
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(ValueError, match="it is larger than 257 MiB"):
        image_sizes.contents(str(path))
