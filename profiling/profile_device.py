"""Measure this device: the same as `python -m elastic_tf profile`."""

from __future__ import annotations

from elastic_tf.app.commands import before, commandline

if __name__ == "__main__":
    commandline.run(before.profile)
