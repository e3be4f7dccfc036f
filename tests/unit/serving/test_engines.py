"""Engines by name, and the comparison of two of them."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from serving.backends.offline import ScoringModel, scoring_model
from serving.engines import ENGINES, EngineComparison, backend_of, compare_engines
from serving.plan import Padded
from workflows.errors import ConfigError
from workflows.trained import ONNX, PYTORCH, TENSORFLOW, Backend

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("trained", "engine", "expected"),
    [
        (TENSORFLOW, None, TENSORFLOW),
        (TENSORFLOW, "tensorflow", TENSORFLOW),
        (TENSORFLOW, "onnx", ONNX),
        (PYTORCH, None, PYTORCH),
        (PYTORCH, "pytorch", PYTORCH),
        (PYTORCH, "onnx", ONNX),
    ],
)
def test_a_model_is_served_by_what_trained_it_or_by_onnx(
    trained: Backend, engine: str | None, expected: Backend
) -> None:
    assert backend_of(trained, engine) == expected


@pytest.mark.parametrize(("trained", "engine"), [(TENSORFLOW, "pytorch"), (PYTORCH, "tensorflow"), (PYTORCH, "jax")])
def test_another_engine_is_refused(trained: Backend, engine: str) -> None:
    with pytest.raises(ConfigError, match=f"engine is '{engine}', expected {trained.name}, which trained .*, or onnx"):
        backend_of(trained, engine)


def test_the_engines_have_the_names_that_users_know() -> None:
    assert list(ENGINES) == ["tensorflow", "pytorch", "onnx"]


@pytest.mark.parametrize(
    ("onnx_ms", "tensorflow_ms", "sentence"),
    [
        (
            [0.1, 0.2, 1.0, 9.0],
            [0.6, 0.7, 1.5, 6.0],
            "onnx is faster up to 256 rows (6.0x at 1 row), tensorflow at 16,384 (1.5x)",
        ),
        ([1.0, 1.0, 1.0, 1.0], [3.0, 2.0, 2.0, 2.0], "onnx is faster up to 16,384 rows (3.0x at 1 row)"),
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.02, 0.98, 1.0], "neither is faster up to 16,384 rows"),
        (
            [1.0, 5.0, 1.0, 1.0],
            [2.0, 1.0, 1.0, 2.0],
            "onnx is faster at 1 row (2.0x), tensorflow at 16 (5.0x), neither at 256, onnx at 16,384 (2.0x)",
        ),
        (
            [3.0, 1.0, 1.0, 1.0],
            [1.0, 1.0, 1.0, 1.0],
            "tensorflow is faster at 1 row (3.0x), neither from 16 on",
        ),
    ],
)
def test_the_summary_says_who_is_faster_where(onnx_ms: list[float], tensorflow_ms: list[float], sentence: str) -> None:
    latency_ms = {"tensorflow": tensorflow_ms, "onnx": onnx_ms}
    assert EngineComparison(batch_sizes=(1, 16, 256, 16384), latency_ms=latency_ms).summary() == sentence


def onnx_sum(path: Path) -> ScoringModel:
    """An ONNX model that adds up lists, times `weight`, plus their length."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("CastLike", ["ids__values", "weight"], ["cast"]),
        helper.make_node("ReduceSum", ["cast", "axis"], ["sum"]),
        helper.make_node("CastLike", ["ids__nnzs", "weight"], ["length"]),
        helper.make_node("Mul", ["sum", "weight"], ["product"]),
        helper.make_node("Add", ["product", "length"], ["score"]),
    ]
    inputs = [
        value("weight", onnx.TensorProto.FLOAT, ["rows", 1]),
        value("ids__values", onnx.TensorProto.INT64, ["rows", "width"]),
        value("ids__nnzs", onnx.TensorProto.INT32, ["rows", 1]),
    ]
    outputs = [value("score", onnx.TensorProto.FLOAT, ["rows", 1])]
    axis = helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "model", inputs, outputs, [axis])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return scoring_model(ONNX, path)


def torch_sum(path: Path) -> ScoringModel:
    """The same in TorchScript."""

    class Sum(torch.nn.Module):
        def forward(self, ids__values, ids__nnzs, weight):  # type: ignore[no-untyped-def]
            return ids__values.sum(1, keepdim=True) * weight + ids__nnzs

    example = (torch.zeros((2, 3), dtype=torch.int64), torch.ones((2, 1), dtype=torch.int32), torch.ones((2, 1)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        torch.jit.trace(Sum(), example).save(str(path))
    return scoring_model(PYTORCH, path)


def rows(num_rows: int) -> dict[str, Any]:
    lengths = np.full(num_rows, 2, np.int32)
    return {"ids": Padded(np.tile([1, 2], (num_rows, 1)), lengths), "weight": np.ones(num_rows, np.float32)}


def test_two_engines_are_timed_on_the_same_rows(tmp_path: Path) -> None:
    models = {"pytorch": torch_sum(tmp_path / "model.pt"), "onnx": onnx_sum(tmp_path / "model.onnx")}
    for model in models.values():
        np.testing.assert_array_equal(model.score_served(rows(3)), [5, 5, 5])
    compared = compare_engines(models, rows(3), batch_sizes=(1, 7), budget_s=0.05)
    assert compared.batch_sizes == (1, 7)
    assert list(compared.latency_ms) == ["pytorch", "onnx"]
    assert all(len(times) == 2 and min(times) > 0 for times in compared.latency_ms.values())
    assert EngineComparison(**json.loads(json.dumps(asdict(compared)))).summary() == compared.summary()


class Counting:
    """A model that counts the calls and their rows."""

    OUTPUT = "score"
    PARAMETERS: Mapping[str, str] = {}

    def __init__(self, path: Path = Path()) -> None:
        self.calls: list[tuple[int, ...]] = []

    def score_served(self, columns: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        def call(*arrays: Any) -> Sequence[Any]:
            self.calls.append(tuple(map(len, arrays)))
            return arrays

        return call


@pytest.mark.parametrize(("tick_ns", "expected"), [(10**9, 4), (10**3, 201)])
def test_slow_engines_get_few_turns_and_fast_ones_not_too_many(tick_ns: int, expected: int) -> None:
    clock = count(step=tick_ns)
    models = {"one": Counting(), "other": Counting()}
    compared = compare_engines(models, rows(3), batch_sizes=(2, 8), budget_s=1.0, clock_ns=lambda: next(clock))
    for model in models.values():
        assert model.calls == [(2, 2, 2)] * expected + [(8, 8, 8)] * expected
    assert compared.summary() == "neither is faster up to 8 rows"


def test_choosing_an_engine_imports_none() -> None:
    heavy = {"tensorflow", "torch", "onnxruntime", "onnx", "pandas", "pyarrow"}
    code = f"import sys, serving.engines; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
