"""The wheel works where there is no checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What `import elastic_tf` leaves alone: all that takes long to load.
SLOW = {"keras_cv", "matplotlib", "scipy.optimize", "scipy.stats", "sklearn"}
SLOW |= {"tensorflow_addons", "tensorflow_datasets"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """What a wheel of this checkout holds; built from a copy, without a network."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "elastic_tf", copy / "elastic_tf", ignore=without)
    options = "--no-deps --no-build-isolation --no-index --disable-pip-version-check".split()
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(copy / "dist"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (copy / "dist").glob("elastic_tf-*.whl")
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    return folder


@pytest.fixture
def python(unpacked, tmp_path):
    """Runs a Python in an empty folder, with nothing of the checkout on its path."""

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(unpacked)}
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return run


def test_wheel_holds_every_module_and_the_mark_of_types(unpacked):
    def files(folder):
        found = (*folder.rglob("*.py"), *folder.rglob("py.typed"))
        return {path.relative_to(folder) for path in found}

    assert files(unpacked / "elastic_tf") == files(ROOT / "elastic_tf")
    assert not (unpacked / "elastic_tf" / "docs").exists()
    assert (unpacked / "elastic_tf" / "py.typed").is_file()
    (entries,) = unpacked.glob("elastic_tf-*.dist-info/entry_points.txt")
    assert "elastic-tf = elastic_tf.__main__:main" in entries.read_text("utf-8")


def test_the_wheel_imports_little_and_changes_nothing_at_first_and_is_there_when_asked(
    python, unpacked
):
    code = (
        # Keras 3 loads Matplotlib and scikit-learn where they are
        "import importlib, os, pkgutil, sys, tensorflow as tf\n"
        "def now():\n"
        "    return {**os.environ}, tf.keras.Model, tf.keras.Model.fit, tf.keras.backend.floatx()\n"
        "kept, before = now(), set(sys.modules)\n"
        "import elastic_tf\n"
        "assert now() == kept\n"
        "assert elastic_tf.ElasticModel and elastic_tf.Plan\n"
        "assert elastic_tf.app.data and elastic_tf.app.zoo\n"
        f"assert not {SLOW} & (set(sys.modules) - before), set(sys.modules) - before\n"
        "assert elastic_tf.plots\n"
        "for one in pkgutil.walk_packages(elastic_tf.__path__, 'elastic_tf.'):\n"
        "    importlib.import_module(one.name)\n"
        "print(elastic_tf.__file__)\n"
    )
    done = python("-m", "elastic_tf", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "doctor" in done.stdout
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parents[1] == unpacked
