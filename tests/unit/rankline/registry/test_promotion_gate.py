import pytest

from rankline.registry.promotion_gate import Bounds, Decision
from rankline.training.evaluation.confidence import Difference
from rankline.workflows.core.errors import ConfigError


def test_bounds_are_read_from_options() -> None:
    assert Bounds.parse(None, None, None) is None
    assert Bounds.parse("auc", None, None) == Bounds(metric="auc")
    assert Bounds.parse("auc", 0.001, "10ms") == Bounds(metric="auc", by=0.001, p99_ms=10)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((None, 0.1, None), "--by: with --if-better METRIC only"),
        ((None, None, "1ms"), "--p99: with --if-better METRIC only"),
        (("auc", -0.1, None), "--by is -0.1, expected a finite number of at least 0"),
        (("auc", float("nan"), None), "--by is nan"),
        (("auc", None, "fast"), "p99=fast"),
    ],
)
def test_options_that_say_nothing_are_refused(options: tuple[None, None, None], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Bounds.parse(*options)


def test_a_decision_says_which_version_is_active_and_why() -> None:
    found = Difference(before=0.7, after=0.71, error=0.001, is_paired=True)
    better = Decision(champion=1, candidate=2, title="AUC", found=found, p99_ms=1.5, refusals=())
    assert better.words == (
        "version 2 is better than version 1: AUC 0.7000 → 0.7100, +0.0100 (+0.0080 to +0.0120), p99 1.50 ms"
    )
    refused = Decision(champion=1, candidate=2, title="AUC", found=found, p99_ms=None, refusals=("it is slow",))
    assert refused.words.startswith("version 1 keeps answering: it is slow. AUC 0.7000")
