"""The choices of `export`, light to import: the command line makes its options from them."""

from dataclasses import dataclass

from workflows.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """How an ensemble is served.

    Attributes:
        max_batch_size: most rows of one request.
    """

    max_batch_size: int = 65_536

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ConfigError(f"max_batch_size is {self.max_batch_size}, expected at least 1.")
