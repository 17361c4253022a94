"""What else can happen to training images: names, and what is refused.

`elastic_tf.data.augmenting` does it.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_tf import arguments
from elastic_tf.arguments import brief

#: What can be applied, in the order in which it is, as in KerasCV's guide.
NAMES = ("randaugment", "cutmix", "mixup")
_MIXING = ("cutmix", "mixup")


def check(names: Sequence[str], batch_size: int) -> None:
    """Refuse what cannot be applied.

    Raises:
        ValueError: an unknown name, or mixing in batches of one image.
    """
    for name in arguments.items("augment", names, what="a list of names"):
        if not isinstance(name, str) or name not in NAMES:
            raise ValueError(f"`augment` must be of {', '.join(NAMES)}. Received: {brief(name)}.")
    if mixes(names) and batch_size < 2:
        raise ValueError(
            "Images are mixed with others of their batch: there must be at least two. Received: "
            f"batch_size={batch_size}, augment={', '.join(names)}. Use a larger batch."
        )


def mixes(names: Sequence[str]) -> bool:
    """Whether labels become shares of several classes."""
    return any(name in _MIXING for name in names)
