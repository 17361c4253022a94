"""TinyTrain's experiments: tasks of a few images, and meta-training on them.

The adaptation itself is `elastic_tf.fewshot`. Source: Kwon et al., TinyTrain, ICML 2024.
"""

from __future__ import annotations

from related.tinytrain.episodes import Episode, Episodes, episodes
from related.tinytrain.meta_training import meta_train

__all__ = ["Episode", "Episodes", "episodes", "meta_train"]
