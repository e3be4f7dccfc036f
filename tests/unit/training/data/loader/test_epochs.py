from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader.epochs import Epochs, Source
from rankline.training.data.loader.stream import Batch, BatchStream
from rankline.workflows.core.errors import ConfigError
from tests.examples import examples


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    for number in range(2):
        rows = pa.table({"row": range(50 * number, 50 * number + 50)})
        pq.write_table(rows, directory / f"{number}.parquet", row_group_size=8)
    return directory


def epochs(directory: Path, per_pass: int = 1, **options: Any) -> Epochs[Batch]:
    options = {"batch_size": 15, "parts_per_chunk": 3, "buffer_size": "1MB", **options}
    return Epochs(Source(stream=BatchStream(directory, ["row"], **options), make=lambda batch: batch), per_pass)


def rows(batches: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


@examples(1 / 2)
@given(num_before=st.integers(0, 20), buffer_size=st.sampled_from(["1MB", "500B"]))
def test_position_leads_to_the_batches_that_were_left(directory: Path, num_before: int, buffer_size: str) -> None:
    whole = epochs(directory, buffer_size=buffer_size)
    every = [batch for _ in range(4) for batch in rows(whole)]
    passing = epochs(directory, buffer_size=buffer_size)
    taken: list[list[int]] = []
    state = passing.state_dict()
    while len(taken) < num_before:
        for batch in passing:
            taken.append(batch["row"].tolist())  # type: ignore[union-attr]
            if len(taken) == num_before:
                state = passing.state_dict()
                break
    restarted = epochs(directory)  # with another buffer: the saved one decides
    restarted.load_state_dict(state)
    rest = rows(restarted) + rows(restarted)
    assert every[: len(taken)] == taken
    assert every[len(taken) : len(taken) + len(rest)] == rest
    assert restarted.is_resuming is False


def test_position_in_a_pass_of_several_epochs_leads_to_the_rest_of_the_pass(directory: Path) -> None:
    whole = epochs(directory, 3)
    every, following = rows(whole), rows(whole)
    for num_taken in (2, 7, 14, 21):
        passing = epochs(directory, 3)
        batches = iter(passing)
        taken = [next(batches)["row"].tolist() for _ in range(num_taken)]  # type: ignore[union-attr]
        restarted = epochs(directory, 3)
        restarted.load_state_dict(passing.state_dict())
        assert restarted.is_resuming is (num_taken < 21)
        rest = rows(restarted)
        assert taken + rest == (every if num_taken < 21 else every + following)
        assert rows(restarted) == (following if num_taken < 21 else rows(whole))


def test_pass_that_is_left_early_is_followed_by_a_new_epoch(directory: Path) -> None:
    passing, whole = epochs(directory), epochs(directory)
    first, second = rows(whole), rows(whole)
    next(iter(passing))
    assert rows(passing) == second
    assert first != second


def test_again_does_not_move_on(directory: Path) -> None:
    passing = epochs(directory)
    assert rows(passing.again()) == rows(passing.again()) == rows(passing)
    assert passing.epoch == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 16}, "batch_size 15, but this loader has 16"),
        ({"global_size": 2}, "global_size 1, but this loader has 2"),
        ({"shuffle": False}, "shuffle True, but this loader has False"),
    ],
)
def test_position_of_another_loader_is_refused(directory: Path, change: dict[str, Any], message: str) -> None:
    state = epochs(directory).state_dict()
    with pytest.raises(ConfigError, match=message):
        epochs(directory, **change).load_state_dict(state)


def test_position_in_other_data_is_refused(directory: Path, tmp_path: Path) -> None:
    state = epochs(directory).state_dict()
    pq.write_table(pa.table({"row": range(100)}), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match="the saved position has data"):
        epochs(tmp_path).load_state_dict(state)
    with pytest.raises(ConfigError, match="data None"):
        epochs(tmp_path).load_state_dict({})
    with pytest.raises(ConfigError, match=r"is at batch 99, but an epoch has \d+ batches"):
        epochs(directory).load_state_dict({**state, "batch": 99})
