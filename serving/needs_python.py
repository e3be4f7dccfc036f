"""Which models of a repository run in Python here: only for those is Triton's Python backend put where it finds it.

With that backend there, whoever may load models may have Triton run a `model.py` of their own.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from serving.model_config import PYTHON_RUNTIME


def need_python(models: Sequence[str], repositories: Sequence[Path], native: Collection[str]) -> bool:
    """Whether some models, or steps of ensembles among them, run in Python.

    Args:
        models: their names.
        repositories: the first one that has a model counts.
        native: backends that have a native form here.

    Returns:
        Also true where a configuration cannot be read: what is wrong with it Triton says.
    """
    waiting, seen = list(models), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        config = _config_of(name, repositories)
        if config is None:
            return True
        if config.platform == "ensemble":
            waiting += [step.model_name for step in config.ensemble_scheduling.step if step.model_name not in seen]
        elif config.runtime == PYTHON_RUNTIME or config.backend not in native:
            return True
    return False


def _config_of(model: str, repositories: Sequence[Path]) -> Any:
    for repository in repositories:
        try:
            return text_format.Parse(
                (repository / model / "config.pbtxt").read_text(encoding="utf-8"), pb.ModelConfig()
            )
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, text_format.ParseError):
            return None
    return None
