"""How large an image file says that it is, before anything is decoded.

A file of some kilobytes can stand for gigabytes of pixels. Only the first bytes of a file are
looked at, and of a GIF the lengths of its blocks, for all its frames are unpacked.
"""

from __future__ import annotations

import struct

import tensorflow as tf

from elastic_tf.files.bounded import read_bytes

MOST_PIXELS = 2**26  # 8192 x 8192, of all frames together; they take 1 GB while they are resized
_PNG, _JPEG, _BMP, _GIF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"BM", b"GIF8"
_KINDS = (_PNG, _JPEG, _BMP, _GIF)  # of image files, by their first bytes
_MOST_BYTES = 4 * MOST_PIXELS + 2**20  # of a file; a bitmap has four bytes for a pixel


def contents(path: str) -> bytes:
    """All of an image file that is worth decoding.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file, empty, of another kind, or stands for too many pixels; the text
            says which.
    """
    try:
        data = read_bytes(path, _MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"it {error}") from error
    if not data:
        raise ValueError("it is empty")
    if not data.startswith(_KINDS):
        # newer TensorFlow decodes more, whose sizes are not known here
        raise ValueError("it is of another kind; convert it")
    pixels = _pixels(data)
    if pixels > MOST_PIXELS:
        raise ValueError(f"it stands for {pixels} pixels, more than {MOST_PIXELS}; make it smaller")
    return data


def _pixels(data: bytes) -> int:
    """Pixels of all frames, of a GIF one more; 0 where the file does not say it."""
    try:
        if data.startswith(_PNG):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(_JPEG):
            height, width, _ = tf.io.extract_jpeg_shape(data).numpy()
        elif data.startswith(_BMP):
            width, height = struct.unpack_from("<ii", data, 18)
        else:
            return _gif_pixels(data)
    except (struct.error, tf.errors.OpError):  # decoding tells what is wrong with it
        return 0
    return abs(int(width)) * abs(int(height))


def _gif_pixels(data: bytes) -> int:
    """Pixels of the frames up to where it is cut off, each as large as the screen at least."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    screen = total = width * height
    place = 13 + _table(flags)
    while (kind := data[place : place + 1]) in (b",", b"!") and total <= MOST_PIXELS:
        if kind == b",":
            if place + 10 > len(data):
                break
            width, height, flags = struct.unpack_from("<HHB", data, place + 5)
            total += max(screen, width * height)
            place += 11 + _table(flags)  # and a byte that says how it is packed
        else:
            place += 2
        while place < len(data) and data[place]:
            place += data[place] + 1
        place += 1
    return total


def _table(flags: int) -> int:
    """Bytes of a table of colours."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0
