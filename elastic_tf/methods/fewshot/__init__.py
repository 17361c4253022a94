"""A few pictures of each class: prototypes, and what to train on a small device.

In: a network, and some images of new classes. Out: the network adapted to them, within memory and
multiply-adds, and what it predicts. The method is TinyTrain (Kwon et al., ICML 2024).
"""

from elastic_tf.methods.fewshot.adaptation import Adapted, adapt
from elastic_tf.methods.fewshot.protonet import ProtoNet
from elastic_tf.methods.fewshot.rule import Budgets, paper_rule

__all__ = ["Adapted", "Budgets", "ProtoNet", "adapt", "paper_rule"]
