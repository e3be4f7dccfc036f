"""Options for running `prepare` on a Dask cluster. Fast to import: the command line derives its options from them."""

import math
import re
from dataclasses import dataclass

from rankline.workflows.core.errors import ConfigError

_FORMS = re.compile(r"local(:[1-9]\d{0,4})?|(tcp|tls)://([^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class DaskConfig:
    """Dask cluster that prepares the data.

    Attributes:
        dask: scheduler to use, tcp://HOST:PORT or tls://HOST:PORT; "local" starts one worker per CPU of this machine,
            "local:N" starts N workers. Without this option, this process does the work.
        dask_memory: memory limit of each worker that "local" starts, e.g. "4GB": a worker spills to disk at 60 % of it
            and is restarted above 95 %. "auto" divides this machine's memory among the workers.
        dask_timeout_s: seconds to wait for a scheduler that does not respond or has no workers.
    """

    dask: str = ""
    dask_memory: str = "auto"
    dask_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.dask and not _FORMS.fullmatch(self.dask):
            raise ConfigError(f"dask is {self.dask!r}, expected tcp://HOST:PORT, tls://HOST:PORT, local or local:N.")
        if not re.fullmatch(r"auto|\d+(\.\d+)? ?([kMGT]i?)?B", self.dask_memory):
            raise ConfigError(f'dask_memory is {self.dask_memory!r}, expected a size such as "4GB", or "auto".')
        if self.dask_memory != "auto" and not self.is_local:
            raise ConfigError(
                f"dask_memory is {self.dask_memory!r}, which is for local workers only. Give others their memory when "
                "they start: dask worker --memory-limit 4GB."
            )
        if not 0 < self.dask_timeout_s < math.inf:
            raise ConfigError(f"dask_timeout_s is {self.dask_timeout_s}, expected a finite number above 0.")

    @property
    def is_local(self) -> bool:
        """Whether the workers run on this machine and stop after the work."""
        return self.dask.startswith("local")

    @property
    def num_local(self) -> int | None:
        """Number of workers to start on this machine; None for one per CPU."""
        return int(self.dask.removeprefix("local:")) if self.dask.startswith("local:") else None
