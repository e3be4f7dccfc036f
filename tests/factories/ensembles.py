"""Tiny ensembles of two compiled workflows: versions are told apart by what they answer, and load in half a second."""

from pathlib import Path

import numpy as np

from rankline.serving.repository.ensemble import CONFIG, ExportedEnsemble, publish_version
from rankline.serving.triton.config import EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.serving.triton.step import MANIFEST_PARAMETER
from rankline.workflows.plan import Column, ColumnSpec, KeyIndex, TransformPlan
from rankline.workflows.schema.tensors import Tensor

NAME = "tiny"
UNSEEN = -1
KEYS = np.arange(5)


def lookup(source: str, target: str, values: np.ndarray) -> TransformPlan:
    """A plan that turns key i into values[i]."""
    return TransformPlan(
        inputs=(ColumnSpec(name=source, dtype="int64"),),
        indexes=(KeyIndex.build(source, KEYS),),
        columns=(Column(name=target, index=0, values=np.array([UNSEEN, *values])),),
    )


def publish_tiny(
    repository: Path,
    offset: float,
    *,
    keep: int = 5,
    runtime: str = "",
    run: tuple[str, str] = ("", ""),
    promote: bool = True,
    num_padding_bytes: int = 0,
    **limits: int,
) -> ExportedEnsemble:
    """Add a version that answers key i with offset + i, trained by a run of this id and tracking URI.

    `runtime` "" is the native backend, where there is one; `limits` are further fields of both steps' `ModelConfig`.
    """
    about = {
        "run_id": run[0],
        "tracking_uri": run[1],
        "engine": "none",
        "metrics": {"valid_auc": 0.5},
        "parity": {"num_rows": len(KEYS)},
    }
    with publish_version(repository, NAME, made_from={}, details=about, keep=keep, promote=promote) as new:
        manifest = {MANIFEST_PARAMETER: f"{NAME}/{new.number}/manifest.json"}
        steps = []
        for step, source, target, values in (("transform", "x", "id", KEYS), ("predict", "id", "score", offset + KEYS)):
            config = ModelConfig(
                name=f"{NAME}_{step}_v{new.number}",
                backend="nvtabular",
                inputs=(Tensor(name=source, dtype="int64"),),
                outputs=(Tensor(name=target, dtype=values.dtype.name),),
                max_batch_size=65_536,
                parameters=manifest,
                runtime=runtime,
                **limits,
            )
            lookup(source, target, values).save(new.directory / config.name / "1" / "plan")
            if num_padding_bytes:
                with (new.directory / config.name / "1" / "plan" / "padding").open("wb") as file:
                    file.truncate(num_padding_bytes)
            (new.directory / config.name / CONFIG).write_text(to_pbtxt(config))
            steps.append(Step(model=config.name, inputs={source: source}, outputs={target: target}))
        whole = EnsembleConfig(
            name=NAME,
            version=new.number,
            inputs=(Tensor(name="x", dtype="int64"),),
            outputs=(Tensor(name="score", dtype=(offset + KEYS).dtype.name),),
            max_batch_size=65_536,
            steps=tuple(steps),
        )
        version = new.directory / NAME / str(new.number)
        version.mkdir(parents=True)
        (version / CONFIG).write_text(to_pbtxt(whole))
    return ExportedEnsemble.load(repository, new.number)


def point_to(ensemble: ExportedEnsemble) -> None:
    """Make a version the active one as a copied file does: without a look at its files."""
    directory = ensemble.path / NAME
    (directory / CONFIG).write_bytes((directory / str(ensemble.version) / CONFIG).read_bytes())


def damage(ensemble: ExportedEnsemble, step: str) -> Path:
    """Change one byte of the largest file of a step, which is returned."""
    folder = ensemble.path / f"{NAME}_{step}_v{ensemble.version}" / "1"
    file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-1] ^= 0xFF
    file.write_bytes(content)
    return file
