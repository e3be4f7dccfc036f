"""The choices of `prepare` for ratings, whose rows stay rows and know what their user rated; light to import."""

from dataclasses import dataclass

from workflows.choices import check_at_least
from workflows.encodings.rows_config import RowsConfig


@dataclass(frozen=True, kw_only=True)
class RatedRowsConfig(RowsConfig):
    """As `RowsConfig`, and how much is known of what a user rated.

    Attributes:
        max_history: of the training ratings of a user the model sees at most this many, the latest.
    """

    max_history: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "max_history")
