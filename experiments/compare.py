"""Compare methods: the same as `python -m elastic_tf compare`."""

from __future__ import annotations

from elastic_tf.app.commands import commandline, compare

if __name__ == "__main__":
    commandline.run(compare.compare)
