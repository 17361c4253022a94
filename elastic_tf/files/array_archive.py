"""Archives of arrays that are not packed (.npz), whoever wrote them: data alone, nothing unpickled.

NumPy's reader makes room for what a header claims before it looks for the numbers, and takes
headers of several kinds. This one reads what `numpy.savez` writes of numbers.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from typing import BinaryIO

import numpy as np

SUFFIX = ".npy"
# What Python's and NumPy's readers of archives raise where bytes are none of theirs; RuntimeError
# for parts that are encrypted, packed in an unknown way or nested too deeply. A lack of memory is
# no damage.
DAMAGE = (
    *(ValueError, KeyError, TypeError, EOFError, SyntaxError, OverflowError, RuntimeError),
    *(zipfile.BadZipFile, struct.error, zlib.error),
)
_BLOCK = 1 << 20  # bytes that are read at a time
# What NumPy writes before the numbers.
_MAGIC = re.compile(rb"\x93NUMPY\x01\x00(..)", re.DOTALL)
_MAGIC_BYTES = 10
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z?]\d{0,9})', 'fortran_order': (True|False), "
    rb"'shape': (\([\d, ]{0,200}\)), \} *\n"
)


def read(file: BinaryIO) -> dict[str, np.ndarray]:
    """The arrays in an archive, by name.

    What is read takes no more memory than the file.

    Raises:
        ValueError: it is no such archive, or a part of it is damaged.
        MemoryError: there is no room for what it holds.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = {_name(info): info for info in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise ValueError("an array stands there twice")
            if sum(info.file_size for info in members.values()) > file.seek(0, 2):
                raise ValueError("it is packed, or its arrays overlap")
            return {name: _array(archive, info) for name, info in members.items()}
    except DAMAGE as error:
        raise ValueError(f"no archive of arrays: {error or type(error).__name__}") from error


def _name(info: zipfile.ZipInfo) -> str:
    if not info.filename.endswith(SUFFIX):
        raise ValueError(f"{info.filename!r} is no array")
    return info.filename[: -len(SUFFIX)]


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array; what it says of its size is checked before there is room made for it."""
    # Stored as it is: what is packed could be a thousand times as large.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{info.filename!r} is packed")
    with archive.open(info) as member:
        magic = _MAGIC.fullmatch(member.read(_MAGIC_BYTES))
        length = struct.unpack("<H", magic[1])[0] if magic else 0
        header = _HEADER.fullmatch(member.read(length))
        if header is None:
            raise ValueError(f"{info.filename!r} is no array of numbers")
        dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[3])))
        left = info.file_size - member.tell()
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"{info.filename!r} has {left} bytes, and should be {dtype} {shape}")
        values, place = np.empty(left, np.uint8), 0
        while block := member.read(_BLOCK):  # to the end, where its checksum is looked at
            values[place : place + len(block)] = np.frombuffer(block, np.uint8)
            place += len(block)
    return values.view(dtype).reshape(shape, order="F" if header[2] == b"True" else "C")
