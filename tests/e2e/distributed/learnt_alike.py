"""What two runs from the same batches have to have in common, when one of them adds in another order.

Sums of float32 that are added in another order differ by about the number of terms times 1.2e-7, relative to the
magnitudes that are added. Adam divides a gradient by its own magnitude, so that where terms cancel a weight may differ
by that much more of a step. A step that is wrong (a worker's rows with the weight of others, a row that is updated
twice) shows as a share of the steps themselves. Between the two lie orders of magnitude, and the bounds:
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.e2e.distributed.exact_steps import BATCH_SIZE

FLOAT32, HALF = 1e-3, 5e-2
"""How far states may be apart, as shares of how far training took them, by the precision of what is added."""

State = Mapping[str, Any]


def assert_equal(found: State, expected: State) -> None:
    """After `take_exact_steps`.

    The gradients are equal to the last bit. What an optimizer makes of an element may be rounded otherwise where a loop
    ends, which a vector instruction does not do; so may the sum of the losses, which are logarithms.
    """
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        num_roundings = BATCH_SIZE if key.startswith("loss/") else 4
        limit = num_roundings * np.finfo(np.float32).eps * np.max(np.abs(array), initial=0)
        np.testing.assert_allclose(found[key], array, rtol=0, atol=limit, err_msg=key)


def assert_close(found: State, expected: State, before: State, share: float) -> None:
    """After any steps from the state `before`."""
    assert found.keys() == expected.keys() == before.keys()
    way = {key: np.max(np.abs(array - before[key]), initial=0) for key, array in expected.items()}
    # A weight that does not matter, such as a bias before a softmax, has no gradient but rounding: all are one group.
    way_of_weights = max(far for key, far in way.items() if key.startswith(("model/", "average/")))
    for key, array in expected.items():
        limit = share * (way_of_weights if key.startswith(("model/", "average/")) else way[key])
        np.testing.assert_allclose(found[key], array, rtol=0, atol=limit, err_msg=key)
