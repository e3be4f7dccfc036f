"""The models that come with Rankline. A new one is a folder with its config and its network, and one line here.

A model of another package needs no line: `TrainConfig` takes its config, and `--model MODULE:CLASS` names it.
"""

from collections.abc import Mapping
from importlib import import_module

from training.models.config import ModelConfig
from training.models.dcnv2 import DCNv2Config
from training.models.dien import DIENConfig
from training.models.din import DINConfig
from training.models.dlrm import DLRMConfig
from training.models.mlp import MLPConfig
from training.models.sim import SIMConfig
from training.models.torch_mlp import TorchMLPConfig
from workflows.errors import ConfigError, SpecError
from workflows.feature_spec import HISTORY, TARGET, FeatureSpec

MODELS: Mapping[str, type[ModelConfig]] = {
    model.name: model
    for model in (MLPConfig, DLRMConfig, DCNv2Config, DINConfig, DIENConfig, SIMConfig, TorchMLPConfig)
}


def model_named(name: str) -> type[ModelConfig]:
    """The config of a model, by its name in `MODELS`, or as "MODULE:CLASS" of one that is not there.

    Raises:
        ConfigError: there is none.
    """
    module, _, class_name = name.partition(":")
    try:
        found = getattr(import_module(module), class_name) if class_name else MODELS[name]
    except (KeyError, ImportError, AttributeError, ValueError) as error:
        reason = f" ({error})" if class_name else ""
        raise ConfigError(
            f"no model {name!r}{reason}. Available: {', '.join(sorted(MODELS))}, or MODULE:CLASS of a ModelConfig."
        ) from None
    if not (isinstance(found, type) and issubclass(found, ModelConfig)):
        raise ConfigError(f"{name} is {found!r}, expected a subclass of training.models.config.ModelConfig.")
    return found


def check_rows(spec: FeatureSpec, model: ModelConfig) -> None:
    """Refuse rows that a model does not take.

    Raises:
        SpecError: the rows have histories that it does not take, or lack those that it takes.
    """
    if model.takes_histories != spec.is_sequential:
        fitting = sorted(name for name, other in MODELS.items() if other.takes_histories == spec.is_sequential)
        got, expected = ("with", "without") if spec.is_sequential else ("without", "with")
        raise SpecError(
            f"model {model.name!r} takes rows {expected} a history and an item to score (channels {TARGET!r} and "
            f"{HISTORY!r}), the data has rows {got}: {sorted(spec.channels)}. Choose one of {', '.join(fitting)}."
        )
