"""Scores as the data frame that MLflow hands out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def score_frame(outputs: Mapping[str, npt.NDArray[np.float32]]) -> pd.DataFrame:
    """A column per output: numbers of one that is (N, 1), a list per row of one that is wider."""
    columns: dict[str, Any] = {
        name: output[:, 0] if output.shape[1] == 1 else list(output) for name, output in outputs.items()
    }
    return pd.DataFrame(columns)
