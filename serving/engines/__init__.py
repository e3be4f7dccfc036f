"""Engines that serve models. Each engine has a folder that defines how it converts, loads and runs models.

    NAME/__init__.py    ENGINE, an `Engine`: name and formats; cheap to import
    NAME/model.py       Triton backend; the folder's name is the name of the backend
    NAME/offline.py     Model, a `rankline.serving.engines.offline.ScoringModel` that runs in this process
    NAME/convert.py     convert(trained, target), for engines that convert models from other formats

Other packages register an engine by an entry point of the group `rankline.engines` that refers to its `ENGINE`, such as
`numpy = "rankline_numpy:ENGINE"`. Its Triton backend can import the same modules as this process.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rankline.workflows.core.errors import ArtifactError, ConfigError, ServerError
from rankline.workflows.core.optional_packages import installed, require
from rankline.workflows.native.build import object_name

if TYPE_CHECKING:
    from rankline.serving.engines.offline import OfflineModel, ScoringModel
    from rankline.workflows.schema.model_artifact import ModelArtifact

ENTRY_POINTS = "rankline.engines"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A runtime that serves models in Triton and in this process.

    Attributes:
        name: value of `--engine`.
        package: the folder as a Python package, `__name__` in its `__init__.py`.
        format: name of the model file or directory that the engine runs, in a model repository or a trained model.
        converts: formats of trained models that the engine converts to its own.
        platform: Triton's name for the format, if it has one.
        output: template for the model's output names, from the output's `{name}` and position `{place}`.
        parameters: parameters of the Triton backend in `config.pbtxt`.
        threads_parameter: name of the parameter that limits the threads of one operation; "" for none.
        module: top-level Python module that the engine needs, if it is optional.
        extra: extra in pyproject.toml that installs the module.
        library: C library in the module's folder that the native backend opens; "" if there is only a Python backend.
    """

    name: str
    package: str
    format: str
    converts: tuple[str, ...] = ()
    platform: str = ""
    output: str = "{name}"
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    threads_parameter: str = ""
    module: str = ""
    extra: str = ""
    library: str = ""

    @property
    def backend(self) -> str:
        return self.package.rpartition(".")[2]

    @cached_property
    def folder(self) -> Path:
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise ConfigError(f"engine {self.name!r} requires the package {self.package!r}, which was not found.")
        return Path(spec.origin).parent

    def require(self, *, feature: str) -> None:
        """Raise an error if the optional module that runs the engine is not installed."""
        if self.module:
            require(self.module, feature=feature, extra=self.extra)

    def load(self, path: Path) -> "ScoringModel":
        """Load a model in the engine's format into this process."""
        model: ScoringModel = import_module(f"{self.package}.offline").Model(path)
        return model

    def load_trained(self, path: Path) -> "OfflineModel":
        """Load a trained model that was saved in the engine's format."""
        return cast("OfflineModel", self.load(path))

    def convert(self, trained: "ModelArtifact", target: Path) -> None:
        """Convert a trained model whose format is in `converts`. Raise ExportError or MissingExtraError on failure."""
        import_module(f"{self.package}.convert").convert(trained, target)


@cache
def engines() -> Mapping[str, Engine]:
    """Return all engines keyed by name. Engines that never convert models come first."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob("*/model.py"))
    ours = [import_module(f"{__name__}.{folder}").ENGINE for folder in folders]
    found = [*ours, *installed(ENTRY_POINTS, Engine).values()]
    for names in ([engine.name for engine in found], [engine.backend for engine in found]):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two engines are named {', '.join(twice)}. Uninstall one of them.")
    return {engine.name: engine for engine in sorted(found, key=lambda engine: bool(engine.converts))}


def engines_for(trained_format: str) -> Mapping[str, Engine]:
    """Return the engines that can serve a format, keyed by name. An engine that needs no conversion comes first."""
    fitting = [engine for engine in engines().values() if trained_format in (engine.format, *engine.converts)]
    return {engine.name: engine for engine in sorted(fitting, key=lambda engine: engine.format != trained_format)}


def engine_for(trained_format: str, name: str | None = None) -> Engine:
    """Return the engine `name` for a trained model, or by default an engine that needs no conversion."""
    fitting = engines_for(trained_format)
    if name is not None:
        if name not in fitting:
            raise ConfigError(
                f"engine {name!r} cannot serve {trained_format}. Available engines: {', '.join(fitting)}."
            )
        return fitting[name]
    for engine in fitting.values():
        if engine.format == trained_format:
            return engine
    known = ", ".join(engine.format for engine in engines().values())
    raise ArtifactError(
        f"no engine runs {trained_format} without conversion. Supported formats: {known}. Install an engine "
        "for this format."
    )


def engine_of_backend(backend: str) -> Engine:
    known = {engine.backend: engine for engine in engines().values()}
    if backend not in known:
        raise ConfigError(f"unknown engine backend {backend!r}, expected one of {', '.join(sorted(known))}.")
    return known[backend]


def backend_names() -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in own_backends()))


def own_backends() -> Iterator[Path]:
    yield from backend_folders((Path(__file__).parents[1] / "python_backends",))
    yield from (engine.folder.absolute() for engine in engines().values())


def backend_folders(directories: tuple[Path, ...]) -> Iterator[Path]:
    for directory in directories:
        if not directory.is_dir():
            raise ServerError(f"backend directory {directory} does not exist.")
        for folder in sorted(directory.iterdir()):
            if (folder / "model.py").is_file() or (folder / object_name(folder.name)).is_file():
                yield folder.absolute()
