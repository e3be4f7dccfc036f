"""The choices of `export`, light to import: the command line makes its options from them."""

from dataclasses import dataclass

from workflows.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """How an ensemble is served.

    Attributes:
        name: of the ensemble model; the steps are NAME_transform and NAME_predict.
        max_batch_size: most rows of one request.
    """

    name: str
    max_batch_size: int = 65_536

    def __post_init__(self) -> None:
        if not self.name.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(f"model name is {self.name!r}, expected letters, digits, '-' and '_'.")
