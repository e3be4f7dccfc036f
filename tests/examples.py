"""The number of examples of a property test whose examples cost more than others' do."""

from typing import Any

from hypothesis import settings


def examples(share: float, **changes: Any) -> settings:
    """The profile's settings with a share of its examples."""
    return settings(max_examples=round(share * settings().max_examples), **changes)
