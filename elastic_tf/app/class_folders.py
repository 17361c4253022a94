"""Which files lie in a folder of images with train/CLASS/ and test/CLASS/, or with CLASS/ alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elastic_tf.arguments import brief

PARTS = ("train", "test")
_TEST_SHARE = 0.2  # of the images of each class, where a folder has no parts
# What Windows and macOS put into folders by themselves, beside hidden files.
_SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})


def class_names(root: Path) -> list[str]:
    """Names of the class folders, which `train` and `test` share, or which are all there is.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: classes that are missing, or differ between train and test.
    """
    if not root.is_dir():
        raise FileNotFoundError(
            f"The data must be a folder with train/CLASS/ and test/CLASS/. Received: '{root}', "
            f"which is {'a file' if root.exists() else 'not there'}."
        )
    names = visible(root)
    if len(names) > 1 and is_flat(root):
        return names
    train, test = (set(visible(root / part)) for part in PARTS)
    if len(train) < 2 or train != test:
        alone, other = (brief(sorted(names)) for names in (train - test, test - train))
        raise ValueError(
            f"'{root}' must hold train/CLASS/ and test/CLASS/ with the same classes, at least two, "
            "or CLASS/ alone. "
            f"Received: {len(train & test)} in both, {alone} in 'train' alone, {other} in 'test' "
            f"alone; '{root}' holds {brief(names)}."
        )
    return sorted(train)


def is_flat(root: Path) -> bool:
    """Whether a folder has CLASS/ alone, without parts."""
    return root.is_dir() and not set(PARTS) & set(visible(root))


def visible(path: Path, *, folders: bool = True) -> list[str]:
    """Sorted names in `path`, of its folders alone or of everything; none where it is no folder."""
    found = path.iterdir() if path.is_dir() else ()
    return sorted(
        one.name
        for one in found
        if not one.name.startswith(".")
        and one.name.lower() not in _SYSTEM_FILES
        and (one.is_dir() or not folders)
    )


def listed(folder: Path, names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Paths of all files, class by class and sorted in each, and their labels, int64 (count,)."""
    files = [visible(folder / name, folders=False) for name in names]
    paths = [str(folder / name / file) for name, found in zip(names, files) for file in found]
    return paths, np.repeat(np.arange(len(names)), [len(found) for found in files])


def parted(root: Path, names: Sequence[str], seed: int) -> list[tuple[list[str], np.ndarray]]:
    """As `listed`, of train/ and of test/; without these, a fifth of each class is for tests.

    Which of them says the seed. The order of the files does not matter.
    """
    if not is_flat(root):
        return [listed(root / part, names) for part in PARTS]
    paths, labels = listed(root, names)
    places = np.random.default_rng(seed).permutation(len(paths))
    is_test = np.zeros(len(paths), bool)
    for k in range(len(names)):
        own = places[labels[places] == k]
        is_test[own[: round(_TEST_SHARE * len(own))]] = True
    parts = (np.flatnonzero(is_in) for is_in in (~is_test, is_test))
    return [([paths[k] for k in part], labels[part]) for part in parts]
