"""A few pictures of each class: episodes, prototypes, and what to train on a small device.

In: a network, and some images of new classes. Out: the network adapted to them, within memory and
multiply-adds, and what it predicts. The method is TinyTrain (Kwon et al., ICML 2024).
"""

from elastic_tf.methods.fewshot.adaptation import Adapted, Scores, adapt, evaluate
from elastic_tf.methods.fewshot.episodes import Episode, Episodes, episodes
from elastic_tf.methods.fewshot.meta_training import meta_train
from elastic_tf.methods.fewshot.protonet import ProtoNet
from elastic_tf.methods.fewshot.rule import Budgets, paper_rule

__all__ = [
    "Adapted",
    "Budgets",
    "Episode",
    "Episodes",
    "ProtoNet",
    "Scores",
    "adapt",
    "episodes",
    "evaluate",
    "meta_train",
    "paper_rule",
]
