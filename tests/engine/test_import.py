"""What `import elastic_tf` loads."""

from __future__ import annotations

import subprocess
import sys

SLOW = {"keras_cv", "matplotlib", "tensorflow_addons", "tensorflow_datasets"}


def test_import_leaves_what_takes_long_alone():
    code = f"""
import sys, elastic_tf as et
assert et.ElasticModel and et.Plan and et.data and et.zoo
print({SLOW} & set(sys.modules))
assert et.plots
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
