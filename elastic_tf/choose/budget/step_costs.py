"""What a step costs now: the profile, foretold where there is none, and what a cache saves."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf.choose.budget.prior import prior_profile
from elastic_tf.choose.budget.remembered import recalled, remember
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train.engine.mixin import ElasticMixin


class StepCosts:
    """The times by which plans are chosen in one `fit`."""

    def __init__(self, model: ElasticMixin, profile: TimingProfile | None) -> None:
        self.profile = profile  # None until a first batch is there
        self._prior: TimingProfile | None = None
        self._model = model

    def foretell(self, batch: Any) -> str:
        """Know the costs without a step, of a batch of `fit`; a line says what is counted on."""
        x, _, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
        self._prior = prior_profile(self._model, x)
        self.profile, said = recalled(self._prior)
        return said

    def remember(self, delivered: float) -> None:
        """Keep for the next `fit` what part of the foretold savings was delivered."""
        if self._prior is not None and self.profile is not None:
            before, after = (one.t_full - one.t_forward for one in (self._prior, self.profile))
            remember(self._prior, delivered * after / before)

    def of_plans(self, epochs: int, *, filling: bool = True) -> TimingProfile:
        """What a plan costs in so many epochs, of forward passes too, where they can be cached.

        With `filling`, computing the activations is a part of the steps that take them.
        """
        rows, profile = self._model._elastic.rows, self.profile
        assert profile is not None
        if rows is None or not rows.can_cache:
            return profile
        cost = rows.fill_cost(epochs, 1e-6 * profile.t_forward) if filling else 0.0
        fill = cost if rows.keeps(epochs) else 1.0
        return profile.with_cached_prefix(fill, rows.held(self._model.tensors))
