"""Adapt a pre-trained model to new images: the same as `python -m elastic_tf train`."""

from __future__ import annotations

from elastic_tf.app.commands import commandline, train

if __name__ == "__main__":
    commandline.run(train.train)
