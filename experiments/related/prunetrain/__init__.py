"""PruneTrain: groups of channels that shrink to zero are cut off while the model trains.

Source: Lym et al., PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration, SC 2019.
"""

from __future__ import annotations

from related.prunetrain.model import (
    METHODS,
    PruneTrainCallback,
    PruneTrainModel,
    adapt,
)

__all__ = ["METHODS", "PruneTrainCallback", "PruneTrainModel", "adapt"]
