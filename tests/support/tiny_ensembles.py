"""Tiny ensembles of two compiled workflows: versions are told apart by what they answer, and load in half a second."""

from pathlib import Path

import numpy as np

from serving.backends.checksums import MANIFEST_PARAMETER
from serving.ensemble import CONFIG, ExportedEnsemble, publish_version
from serving.model_config import EnsembleConfig, ModelConfig, Step, to_pbtxt
from serving.plan import Column, ColumnSpec, KeyIndex, TransformPlan
from workflows.tensors import Tensor

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


def publish_tiny(repository: Path, offset: int, *, keep: int = 5, runtime: str = "", **limits: int) -> ExportedEnsemble:
    """Add a version that answers key i with offset + i.

    Args:
        repository: where to.
        offset: what tells this version from others.
        keep: versions to keep.
        runtime: of both steps; "" for the native backend, where there is one.
        limits: further fields of both steps' `ModelConfig`.
    """
    with publish_version(repository, NAME, made_from={}, details={"run_id": "none"}, keep=keep) as new:
        manifest = {MANIFEST_PARAMETER: f"{NAME}/{new.number}/manifest.json"}
        steps = []
        for step, source, target, values in (("transform", "x", "id", KEYS), ("predict", "id", "score", offset + KEYS)):
            config = ModelConfig(
                name=f"{NAME}_{step}_v{new.number}",
                backend="nvtabular",
                inputs=(Tensor(name=source, dtype="int64"),),
                outputs=(Tensor(name=target, dtype="int64"),),
                max_batch_size=65_536,
                parameters=manifest,
                runtime=runtime,
                **limits,
            )
            lookup(source, target, values).save(new.directory / config.name / "1" / "plan")
            (new.directory / config.name / CONFIG).write_text(to_pbtxt(config))
            steps.append(Step(model=config.name, inputs={source: source}, outputs={target: target}))
        whole = EnsembleConfig(
            name=NAME,
            version=new.number,
            inputs=(Tensor(name="x", dtype="int64"),),
            outputs=(Tensor(name="score", dtype="int64"),),
            max_batch_size=65_536,
            steps=tuple(steps),
        )
        version = new.directory / NAME / str(new.number)
        version.mkdir(parents=True)
        (version / CONFIG).write_text(to_pbtxt(whole))
    return ExportedEnsemble.load(repository)


def damage(ensemble: ExportedEnsemble, step: str) -> Path:
    """Change one byte of the largest file of a step, which is returned."""
    folder = ensemble.path / f"{NAME}_{step}_v{ensemble.version}" / "1"
    file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-1] ^= 0xFF
    file.write_bytes(content)
    return file
