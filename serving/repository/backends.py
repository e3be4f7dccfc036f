"""The backend folders that a server is started with."""

from collections.abc import Iterator
from pathlib import Path

from rankline.serving.engines import engines
from rankline.workflows.core.errors import ServerError
from rankline.workflows.native.build import object_name

_FOLDER = Path(__file__).parents[1] / "python_backends"


def backend_names() -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in own_backends()))


def own_backends() -> Iterator[Path]:
    yield from backend_folders((_FOLDER,))
    yield from (engine.folder.absolute() for engine in engines().values())


def backend_folders(directories: tuple[Path, ...]) -> Iterator[Path]:
    for directory in directories:
        if not directory.is_dir():
            raise ServerError(f"backend directory {directory} does not exist.")
        for folder in sorted(directory.iterdir()):
            if (folder / "model.py").is_file() or (folder / object_name(folder.name)).is_file():
                yield folder.absolute()
