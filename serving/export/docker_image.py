"""Build a container image with the server and the active version of an exported ensemble.

It is the serving image of the container stack, without Python, plus the version in /models. The same export on the same
base image produces the same layers: file times are set to the time of the export (`SOURCE_DATE_EPOCH`).
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rankline.serving.engines import engines
from rankline.serving.repository.ensemble import CONFIG, ExportedEnsemble
from rankline.workflows.core.errors import ConfigError, ExportError

_SOURCES = (
    "serving/deploy/Dockerfile",
    "serving/deploy/bin/*",
    "serving/deploy/requirements/requirements-engines.txt",
    "serving/deploy/sbom.py",
    "workflows/native/build.py",
    *(f"{part}/native/**/*.{ending}" for part in ("serving", "workflows") for ending in ("cc", "h")),
)
_MODELS = "models"
_MIN_ENGINE, _ARCHITECTURE = 25, "amd64"
_ENGINE_ADVICE = f"Start Docker Engine {_MIN_ENGINE} or later, or set DOCKER_HOST to its address"
_REMEDIES = {
    "permission denied": "You have no access to the engine: have root add you to its group (usermod -aG docker YOU)",
    "no space left on device": (
        "The engine's disk is full: check its usage (docker system df), and free space (docker builder prune)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Image:
    tag: str
    num_bytes: int


def build_image(ensemble: ExportedEnsemble, tag: str | None = None) -> Image:
    library = _library_of(ensemble)
    tag = tag or f"rankline-{ensemble.name}:{ensemble.version}"
    _check_engine()
    with tempfile.TemporaryDirectory(prefix="rankline-image-") as directory:
        context, exported = Path(directory, "context"), Path(directory, "export")
        _copy_sources(context)
        created = _copy_version(ensemble, exported)
        labels = [part for name, value in _labels(ensemble).items() for part in ("--label", f"{name}={value}")]
        _docker(
            "build", "--quiet", "--target", "image", "--tag", tag, *labels,
            "--build-arg", f"ENGINE={library}", "--build-arg", f"SOURCE_DATE_EPOCH={created}",
            "--build-context", f"export={exported}", "--file", f"{context}/serving/deploy/Dockerfile", str(context),
            advice="Check what `docker build` needs (a registry, free disk space)",
        )  # fmt: skip
    return Image(tag=tag, num_bytes=int(_docker("image", "inspect", "--format", "{{.Size}}", tag)))


def _check_engine() -> None:
    version, _, architecture = _docker(
        "version", "--format", "{{.Server.Version}} {{.Server.Arch}}", advice=_ENGINE_ADVICE
    ).partition(" ")
    release = version.partition(".")[0]
    if not release.isdecimal() or int(release) < _MIN_ENGINE:
        raise ExportError(
            f"Docker Engine is version {version}, expected {_MIN_ENGINE} or later. Upgrade it "
            "(https://docs.docker.com/engine/install)."
        )
    if architecture != _ARCHITECTURE:
        raise ExportError(
            f"Docker Engine runs on {architecture}, but the server requires {_ARCHITECTURE}. Set DOCKER_HOST to an "
            "engine on a machine with that architecture."
        )


def _library_of(ensemble: ExportedEnsemble) -> str:
    details, with_library = ensemble.manifest.details, {e.name: e.backend for e in engines().values() if e.library}
    library = with_library.get(details["engine"])
    if library is None or details["uncompiled"] or not all(details["native"].values()):
        raise ConfigError(
            f"version {ensemble.version} of {ensemble.name} (engine {details['engine']}) requires Python for "
            "serving, but the image does not include it. Export it with --engine "
            f"{' or '.join(sorted(with_library))}, and without --uncompiled."
        )
    return library


def _labels(ensemble: ExportedEnsemble) -> dict[str, str]:
    manifest = ensemble.manifest
    return {
        "org.opencontainers.image.title": ensemble.name,
        "org.opencontainers.image.version": str(ensemble.version),
        "rankline.recipe": ensemble.name,
        "rankline.version": str(ensemble.version),
        "rankline.run": ensemble.run_id,
        "rankline.data": manifest.made_from.get("prepared-data", ""),
        "rankline.parity": f"{manifest.details['parity']['largest_score_difference']:.3g}",
    }


def _copy_sources(target: Path) -> None:
    package = Path(__file__).parents[2]
    for pattern in _SOURCES:
        for path in package.glob(pattern):
            copy = target / path.relative_to(package)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def _copy_version(ensemble: ExportedEnsemble, target: Path) -> int:
    models = target / _MODELS
    version = Path(ensemble.name, str(ensemble.version))
    for step in (version, *map(Path, ensemble.steps)):
        shutil.copytree(ensemble.path / step, models / step)
    shutil.copy(models / version / CONFIG, models / ensemble.name / CONFIG)
    for path in (*target.rglob("*"), target):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return int(datetime.fromisoformat(ensemble.manifest.created_at).timestamp())


def _docker(*arguments: str, advice: str = "") -> str:
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ExportError(f"docker was not found. {_ENGINE_ADVICE}.") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
        remedy = next((remedy for words, remedy in _REMEDIES.items() if words in done.stderr), advice)
        raise ExportError(f"docker {arguments[0]}: {lines[-1].strip()} {remedy}.")
    return done.stdout.strip()
