"""The engines that a model can be served by: a folder each, which says how it converts, loads and runs models.

    NAME/__init__.py    ENGINE, an `Engine`: what it is called and which formats it takes; light to import
    NAME/model.py       Triton's side: a folder with it is a backend, called as the folder is
    NAME/offline.py     Model, a `rankline.serving.engines.offline.ScoringModel`: the same in this process
    NAME/convert.py     convert(trained, target), of an engine that takes models which it has to convert

An engine in another package is known by an entry point of the group `rankline.engines` that leads to its `ENGINE`, such
as `numpy = "rankline_numpy:ENGINE"`. Triton's side may import what this process can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.core.plugins import installed

if TYPE_CHECKING:
    from rankline.serving.engines.offline import OfflineModel, ScoringModel
    from rankline.workflows.schema.model_artifact import ModelArtifact

ENTRY_POINTS = "rankline.engines"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What runs a model, in Triton and in this process.

    Attributes:
        name: what `--engine` takes.
        package: the folder as a Python package, `__name__` in its `__init__.py`.
        format: name of the file or directory that it runs, in a model repository as in a trained model.
        converts: formats of trained models that it takes beside its own, and converts.
        platform: what Triton calls the format, where it has a name for it.
        output: what the model calls an output, from its `{name}` and its `{place}` among all.
        parameters: for Triton's side, in `config.pbtxt`.
        threads_parameter: name of the one that says how many threads one operation may use; "" for none.
        module: top-level Python module that runs it, where it is an optional one.
        extra: the extra in pyproject.toml that brings the module.
        library: of C, in the module's folder, which the native backend opens; "" where there is only one in Python.
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
            raise ConfigError(f"engine {self.name!r} names the package {self.package!r}, which cannot be found.")
        return Path(spec.origin).parent

    def require(self, *, feature: str) -> None:
        """Refuse to go on without the module that runs it."""
        if self.module:
            require(self.module, feature=feature, extra=self.extra)

    def load(self, path: Path) -> "ScoringModel":
        """A model of its format in this process."""
        model: ScoringModel = import_module(f"{self.package}.offline").Model(path)
        return model

    def load_trained(self, path: Path) -> "OfflineModel":
        """A model that was trained in its format in this process."""
        return cast("OfflineModel", self.load(path))

    def convert(self, trained: "ModelArtifact", target: Path) -> None:
        """Write a trained model of one of the formats that it `converts` to `target`, in its own.

        Raises:
            ExportError: the model cannot be converted.
            MissingExtraError: the packages that convert it are not installed.
        """
        import_module(f"{self.package}.convert").convert(trained, target)


@cache
def engines() -> Mapping[str, Engine]:
    """All engines by name: first those that run what a framework trains, then those that convert it."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob("*/model.py"))
    ours = [import_module(f"{__name__}.{folder}").ENGINE for folder in folders]
    found = [*ours, *installed(ENTRY_POINTS, Engine).values()]
    for names in ([engine.name for engine in found], [engine.backend for engine in found]):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two engines are called {', '.join(twice)}. Uninstall one of them.")
    return {engine.name: engine for engine in sorted(found, key=lambda engine: bool(engine.converts))}


def engines_for(trained_format: str) -> Mapping[str, Engine]:
    """Those that take a trained model of a format by name, first the one that runs it as it is."""
    fitting = [engine for engine in engines().values() if trained_format in (engine.format, *engine.converts)]
    return {engine.name: engine for engine in sorted(fitting, key=lambda engine: engine.format != trained_format)}


def engine_for(trained_format: str, name: str | None = None) -> Engine:
    """What serves a trained model.

    Args:
        trained_format: of the model.
        name: of the engine; None for the one that runs the model as it is.

    Raises:
        ArtifactError: no engine runs the format as it is.
        ConfigError: there is no such engine, or it does not take the format.
    """
    fitting = engines_for(trained_format)
    if name is not None:
        if name not in fitting:
            raise ConfigError(f"engine is {name!r}, expected one that takes {trained_format}: {', '.join(fitting)}.")
        return fitting[name]
    for engine in fitting.values():
        if engine.format == trained_format:
            return engine
    known = ", ".join(engine.format for engine in engines().values())
    raise ArtifactError(f"no engine runs {trained_format} as it is. Available: {known}. Install one that does.")


def engine_of_backend(backend: str) -> Engine:
    """The engine that Triton knows by the name of a backend."""
    known = {engine.backend: engine for engine in engines().values()}
    if backend not in known:
        raise ConfigError(f"{backend!r} is not the backend of an engine, expected {', '.join(sorted(known))}.")
    return known[backend]
