"""The scorer as an MLflow model, logged from this file ("models from code")."""

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray

from bench.peers.servers.scorer import Scorer


class ScoringModel(PythonModel):
    def load_context(self, context: PythonModelContext) -> None:
        self._scorer = Scorer(Path(context.artifacts["scorer"]))

    def predict(
        self,
        context: PythonModelContext,  # noqa: ARG002  (MLflow's signature)
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> NDArray[Any]:
        return self._scorer.score({name: model_input[name].tolist() for name in model_input})


set_model(ScoringModel())
