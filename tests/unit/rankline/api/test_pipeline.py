"""What the stages of the pipeline report."""

import pytest

from rankline.api.pipeline import _describe_quality
from rankline.workflows.schema.targets import Head


@pytest.mark.parametrize(("second", "is_constant"), [(0.75, True), (0.76, False)])
def test_seed_without_an_effect_is_reported(second: float, is_constant: bool) -> None:
    metrics = {seed: {"valid_auc": auc} for seed, auc in enumerate((0.75, second))}
    said = _describe_quality([Head("label")], metrics)
    assert " over 2 seeds" in said
    assert ("the seed has no effect on this model" in said) == is_constant
