"""TinyTrain's experiments: tasks of a few images, meta-training on them, accuracy over many.

The adaptation itself is `elastic_tf.fewshot`. Source: Kwon et al., TinyTrain, ICML 2024.
"""

from __future__ import annotations

from related.tinytrain.episodes import Episode, Episodes, episodes
from related.tinytrain.evaluation import Scores, evaluate
from related.tinytrain.meta_training import meta_train

__all__ = ["Episode", "Episodes", "Scores", "episodes", "evaluate", "meta_train"]
