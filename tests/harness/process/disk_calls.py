"""What this process asks of the disk, in order: the real calls, written down."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankline.workflows.storage import artifacts


class DiskCalls:
    """Calls that were made while they were patched: "sync", "rename" or "remove", and the path that it was for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        fsync, rename, replace, exchange = os.fsync, Path.rename, Path.replace, artifacts.exchange_paths

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self.made.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))

        def noted(name: str, call: Any) -> Any:
            def run(first: Path, *others: Any, **options: Any) -> Any:
                self.made.append((name, str(first)))
                return call(first, *others, **options)

            return run

        patch.setattr(os, "fsync", synced)
        patch.setattr(Path, "rename", noted("rename", rename))
        patch.setattr(Path, "replace", noted("rename", replace))
        patch.setattr(artifacts, "exchange_paths", noted("rename", exchange))
        patch.setattr(shutil, "rmtree", noted("remove", shutil.rmtree))

    def index(self, name: str) -> int:
        """Which call was the only one of a name."""
        (found,) = [number for number, (call, _) in enumerate(self.made) if call == name]
        return found

    def synced(self, begin: int, end: int | None = None) -> set[str]:
        """Paths that were synced in a range of calls."""
        return {path for call, path in self.made[begin:end] if call == "sync"}
