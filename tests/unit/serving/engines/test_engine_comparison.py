"""The comparison of the engines that can serve a model."""

import json
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

from serving.engines import engine_for, engines
from serving.engines.comparison import EngineComparison, compare_engines
from serving.engines.offline import ScoringModel
from workflows.lists import Padded
from workflows.trained import TORCH_SCRIPT


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


def test_the_summary_names_the_fastest_of_any_number_of_engines() -> None:
    latency_ms = {"one": [1.0, 4.0, 2.0], "two": [3.0, 2.0, 2.0], "three": [2.0, 8.0, 9.0]}
    compared = EngineComparison(batch_sizes=(1, 16, 256), latency_ms=latency_ms)
    assert compared.summary() == "one is faster at 1 row (2.0x), two at 16 (2.0x), none at 256"
    alone = EngineComparison(batch_sizes=(1, 16, 256), latency_ms={"one": latency_ms["one"]})
    assert alone.summary() == "no other engine to compare with"


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
    return engines()["onnx"].load(path)


def torch_sum(path: Path) -> ScoringModel:
    """The same in TorchScript."""

    class Sum(torch.nn.Module):
        def forward(self, ids__values, ids__nnzs, weight):  # type: ignore[no-untyped-def]
            return ids__values.sum(1, keepdim=True) * weight + ids__nnzs

    example = (torch.zeros((2, 3), dtype=torch.int64), torch.ones((2, 1), dtype=torch.int32), torch.ones((2, 1)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        torch.jit.trace(Sum(), example).save(str(path))
    return engine_for(TORCH_SCRIPT).load(path)


def rows(num_rows: int) -> dict[str, Any]:
    lengths = np.full(num_rows, 2, np.int32)
    return {"ids": Padded(np.tile([1, 2], (num_rows, 1)), lengths), "weight": np.ones(num_rows, np.float32)}


def test_engines_are_timed_on_the_same_rows(tmp_path: Path) -> None:
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

    def __init__(self, path: Path = Path()) -> None:
        self.calls: list[tuple[int, ...]] = []

    def score_served(self, columns: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        def call(*arrays: Any) -> Sequence[Any]:
            self.calls.append(tuple(map(len, arrays)))
            return arrays

        return call


@pytest.mark.parametrize("names", [("one",), ("one", "other"), ("one", "other", "third")])
@pytest.mark.parametrize(("tick_ns", "expected"), [(10**9, 4), (10**3, 201)])
def test_slow_engines_get_few_turns_and_fast_ones_not_too_many(
    names: tuple[str, ...], tick_ns: int, expected: int
) -> None:
    clock = count(step=tick_ns)
    models = {name: Counting() for name in names}
    compared = compare_engines(models, rows(3), batch_sizes=(2, 8), budget_s=1.0, clock_ns=lambda: next(clock))
    for model in models.values():
        assert model.calls == [(2, 2, 2)] * expected + [(8, 8, 8)] * expected
    assert all(len(times) == 2 for times in compared.latency_ms.values())
