"""What the options name is what there is, in the same order."""

from __future__ import annotations

from elastic_tf import baselines, optimizers
from elastic_tf.commands import names
from elastic_tf.data import tfds
from elastic_tf.zoo import models


def test_names_of_the_options_are_those_of_the_registries():
    assert names.MODELS == models.NAMES
    assert names.METHODS == baselines.NAMES
    assert names.OPTIMIZERS == optimizers.NAMES
    assert names.DATA_SETS == tfds.NAMES


def test_methods_need_a_profile_where_the_options_say_so():
    needs = {name: method.needs_profile for name, method in baselines.METHODS.items()}
    assert needs == names.NEEDS_PROFILE
