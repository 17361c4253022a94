"""Files that appear whole or not at all, and files that anybody may have written.

JSON is read within limits, and holds finite numbers alone. A set of tensors stands in it as
[first, last] ranges; both ends belong to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np

from elastic_tf import arguments

_MOST_BYTES = 4 << 20  # of a JSON document; the profile of a model of 1,000 tensors takes 0.4 MB
_MOST_TENSORS = 100_000  # a file that claims more is not of a model
_OWNER_CHARACTERS = 200
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def directory(path: str | Path) -> Path:
    """Make a directory, and those above it, where it is not there; an OSError names it."""
    made = Path(path)
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"There must be a directory, or it must be possible to make one. Received: '{made}': "
            f"{error}. Choose another path, or change the permissions."
        ) from error
    return made


@contextlib.contextmanager
def replaced(path: Path, part: Path) -> Iterator[BinaryIO]:
    """A file `part` to write, which takes the place of `path` once it is on the disk.

    A reader sees the old file or the new one; after an error the old one stays. Who may read it is
    what the old file says, and the umask where there is none.
    """
    try:
        with open(part, "wb") as file:
            with contextlib.suppress(OSError):  # there is none, or its file system has no modes
                shutil.copymode(path, part)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    path = Path(path)
    # Not of `tempfile`, whose files nobody else may read.
    part = directory(path.parent) / f".{path.name}.{secrets.token_hex(4)}"
    with replaced(path, part) as file:
        file.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all; a ValueError if a number is not finite."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def claim(
    lock: str | Path, *, rule: str, what: str | Path, shared: bool = False
) -> contextlib.ExitStack:
    """Claim what the file `lock` stands for, until what is returned is closed or forgotten.

    The file is made where it is not there, and stays. With `shared` this process may have several
    claims of it. `rule` is a sentence on `what` is claimed, for the message of a refusal.

    Raises:
        ValueError: another process has claimed it (or this one, unless `shared`); it is named.
        OSError: the lock file cannot be made or locked.
    """
    path = Path(lock).absolute()
    held = filelock.FileLock(path, timeout=0, thread_local=False, is_singleton=shared)
    try:
        held.acquire()
    except (filelock.Timeout, RuntimeError) as error:  # a second lock of this process is no wait
        owner = ""
        with contextlib.suppress(OSError):
            owner = path.read_text(errors="replace")[:_OWNER_CHARACTERS]
        owner = "".join(filter(str.isprintable, owner)) or "another process"
        raise ValueError(
            f"{rule} Received: '{what}', which {owner} uses now. Wait until it has ended, or "
            "choose another one."
        ) from error
    with contextlib.suppress(OSError):  # a full disk: who has claimed it stays unknown
        path.write_text(f"process {os.getpid()} on {socket.gethostname()!r} since {now()}")
    released = contextlib.ExitStack()
    released.callback(held.release)
    return released


def now() -> str:
    """The day and the second, in UTC, as ISO 8601 has them."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def as_utf8(text: str) -> str:
    r"""The text in characters that UTF-8 has: a file name may have others, as \udcff."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def to_json(value: Any) -> Any:
    """`value` of dicts, lists, scalars and text alone, as `json.loads` would return it.

    Arrays become lists, dataclasses dicts, paths text; a number that is not finite becomes None.
    What has no such form is a TypeError.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, os.PathLike)):
        return as_utf8(os.fsdecode(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {as_utf8(str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=repr)
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    if callable(getattr(value, "numpy", None)):  # a tensor
        return to_json(value.numpy())
    raise TypeError(
        "A file stores a `value` of numbers, text, lists and dicts. Received: "
        f"{arguments.brief(value)} of type {type(value).__name__}. Store a description of it."
    )


def read_json(path: str | Path) -> Any:
    """The value in a JSON file; errors as of `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path))


def read_bytes(path: str | Path, most: int = _MOST_BYTES) -> bytes:
    """All of a file of at most `most` bytes; a pipe or a device may have no end.

    Raises:
        ValueError: it is larger, or none. The text ends the sentence that begins with the path.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("is no regular file")
    with open(path, "rb") as file:
        data = file.read(min(found.st_size, most) + 1)  # Python makes room for all of it
    if len(data) > most:
        raise ValueError(f"is larger than {most >> 20} MiB")
    return data


def parse_json(data: bytes) -> Any:
    """The value that `data`, UTF-8, stands for; errors as of `read_bytes`."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds {arguments.brief(text)}, which is no finite number")
    return value


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False])).reshape(-1, 2)
    return [[first, after - 1] for first, after in edges.tolist()]


def from_ranges(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`; a TypeError or ValueError if none."""
    mask = np.zeros(arguments.count("count", count, least=0, most=_MOST_TENSORS), bool)
    end = -1
    for pair in arguments.items("ranges", ranges, what="[first, last] pairs"):
        whole = isinstance(pair, (list, tuple)) and [type(k) for k in pair] == [int, int]
        if not whole or not end < pair[0] <= pair[1] < count:
            raise ValueError(
                f"`ranges` must be ascending [first, last] pairs below {count}. Received: "
                f"{arguments.brief(pair)}."
            )
        end = pair[1]
        mask[pair[0] : end + 1] = True
    return mask


def read_arrays(path: str | Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """All arrays in an archive (.npz), or those of `names`; checksums checked, nothing unpickled.

    Raises:
        ValueError: it is no archive of arrays, or damaged. The text ends the sentence that begins
            with the path.
        OSError: it cannot be read.
    """
    try:
        # Opened here, because NumPy leaves a file open that turns out to be none of its own.
        with open(path, "rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            return {name: file[name] for name in file if names is None or name in names}
    except OSError:
        raise
    except Exception as error:  # damaged bytes raise a dozen kinds in NumPy, zipfile and zlib
        raise ValueError(f"is no archive of arrays: {error or type(error).__name__}") from error


def array(shape: tuple[int, ...], dtype: Any, *, memory: int) -> np.ndarray:
    """An array without values: in memory up to so many bytes, beyond them in a temporary file.

    In a file, too, where the system has no room in memory. The file has no name: it goes with the
    array, and when the process ends.
    """
    if math.prod(shape) * np.dtype(dtype).itemsize <= memory:
        with contextlib.suppress(MemoryError):
            return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:  # the array holds it open by itself
        return np.memmap(file, dtype, "w+", shape=shape)


def quarter_of_memory() -> int:
    """Bytes: of the memory of this machine or container, or 1 GiB where it is unknown (Windows)."""
    if not hasattr(os, "sysconf"):
        return 1 << 30
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, container_memory()) // 4


def container_memory() -> int:
    """Bytes that the control groups (container) of this process allow; 2^63 without a limit."""
    allowed = [1 << 63]
    with contextlib.suppress(OSError, ValueError):  # another system
        for line in _OWN_CGROUPS.read_text("utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):  # of version 2, of version 1
                top = _CGROUPS / kinds
                name = "memory.limit_in_bytes" if kinds else "memory.max"
                group = top / path.lstrip("/")
                for folder in (group, *group.parents):
                    with contextlib.suppress(OSError, ValueError):  # not there, or "max"
                        allowed.append(int((folder / name).read_text("utf-8")))
    return min(allowed)


def format_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Titles, a rule and the rows, numbers to the right; '-' stands for None and what is missing.

    A column is KEY, KEY:FORMAT or KEY:FORMAT:TITLE, such as "t_dw:.3f:t_dw ms". There is no final
    line break.
    """
    rows, cells = list(rows), []
    for column in columns:
        key, form, title = described(column)
        values = [row.get(key) for row in rows]
        texts = [title, *(_cell(value, form) for value in values)]
        aligned = str.ljust if any(isinstance(value, str) for value in values) else str.rjust
        cells.append([aligned(text, max(map(len, texts))) for text in texts])
    titles, *lines = ("  ".join(line).rstrip() for line in zip(*cells))
    rule = "-" * max(len(line) for line in [titles, *lines])
    return "\n".join([titles, rule, *lines])


def described(column: str) -> tuple[str, str, str]:
    """Key, format of numbers and title of a column; the title is else the key."""
    key, form, title = (*column.split(":"), "", "")[:3]
    return key, form, title or key.replace("_", " ")


def _cell(value: Any, number_format: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, number_format)
