import numpy as np
import pytest

from elastic_tf.timing.cost_items import CostItem, check_items


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (CostItem((0,), -1.0), r"`items\[1\].time` must be .*=-1.0"),
        (CostItem((0,), np.nan), r"`items\[1\].time` must be .*=nan"),
        (CostItem((), 1.0), r"`items\[1\].tensors` must be .*\(\)"),
        (CostItem((3,), 1.0), r"below 3. Received: \(3,\)"),
        (CostItem((-1,), 1.0), r"below 3. Received: \(-1,\)"),
        (CostItem((1, 0), 1.0), r"Received: \(1, 0\)"),
        (CostItem((1, 1), 1.0), r"Received: \(1, 1\)"),
    ],
)
def test_check_items_names_what_no_step_can_have(item, message):
    with pytest.raises(ValueError, match=message):
        check_items("items", [CostItem((0, 1), 1.0), item], 3)
