"""Which columns feed which inputs, and what is said where they do not fit."""

import numpy as np
import pytest

from serving.foreign.inputs import MATRIX, Encoded, Input, arrays_of, dtypes_of, match
from tests.support.foreign_models import COLUMNS, LAYOUTS, ROWS
from workflows.errors import ExportError
from workflows.tensor_names import NNZS, OFFSETS, VALUES

USER, PRICE, TAGS = COLUMNS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_input_of_a_layout_gets_what_it_says(layout: str) -> None:
    inputs = LAYOUTS[layout]
    arrays = arrays_of(match(inputs, COLUMNS, {}, "the model"), ROWS)
    for entry in inputs:
        array = arrays[entry.name]
        assert array.dtype == entry.dtype
        assert entry.shape is not None
        assert array.ndim == len(entry.shape)
        assert [n for n, size in zip(array.shape, entry.shape, strict=True) if size is not None] == [
            size for size in entry.shape if size is not None
        ]


def test_lists_are_flat_with_offsets_or_lengths_and_padded_with_zeros() -> None:
    inputs = (*LAYOUTS["[rows, 1], lists values and offsets"], Input(name="tags", dtype="int64", shape=(None, None)))
    arrays = arrays_of(match(inputs, COLUMNS, {}, "the model"), ROWS)
    assert arrays["tags" + VALUES].tolist() == [1, 2, 5, 6, 7, 8, 3, 2, 2, 4]
    assert arrays["tags" + OFFSETS].tolist() == [0, 2, 2, 6, 7, 10]
    assert arrays["tags"].tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [5, 6, 7, 8], [3, 0, 0, 0], [2, 2, 4, 0]]


def test_a_matrix_has_all_columns_in_their_order() -> None:
    (feed,) = match([Input(name="float_input", dtype="float32", shape=(None, 2))], [USER, PRICE], {}, "the model")
    assert (feed.kind, feed.columns) == (MATRIX, ("user", "price"))
    assert arrays_of([feed], ROWS)["float_input"].tolist()[1] == [3.0, -1.25]
    assert dtypes_of([feed]) == {"user": "float32", "price": "float32"}


def test_a_matrix_whose_features_have_names_is_made_in_their_order_and_of_them_alone() -> None:
    entry = Input(name="rows", dtype="float32", shape=(None, 2), features=("price", "id"))
    columns = [USER, Encoded(name="label", dtype="int8"), PRICE]
    (feed,) = match([entry], columns, {"user": "id"}, "the model")
    assert feed.columns == ("price", "user")


def test_a_type_that_no_format_says_is_that_of_ids_and_numbers() -> None:
    feeds = match([Input(name="price"), Input(name="user")], COLUMNS, {}, "the model")
    assert [feed.dtype for feed in feeds] == ["float32", "int64"]


REFUSED = {
    "another name": (
        [Input(name="user_id", dtype="int64", shape=(None, 1))],
        {},
        r"takes 'user_id' \(int64\[\?, 1\]\), which the workflow does not make: it makes 'user' \(int64\), .*"
        r"Did you mean 'user' by 'user_id'\? .*--rename COLUMN=user_id",
    ),
    "floats as ids": ([Input(name="price", dtype="int64", shape=(None, 1))], {}, "floats would lose"),
    "another rank": ([Input(name="user", dtype="int64", shape=(None, 3))], {}, "one value per row"),
    "one value where lists are taken": (
        [Input(name="user" + VALUES, dtype="int64", shape=(None,))],
        {},
        "part of lists",
    ),
    "lists where a number is taken": (
        [Input(name="tags", dtype="int64", shape=(None,)), Input(name="user")],
        {},
        "expected a matrix",
    ),
    "a matrix of another width": ([Input(name="x", dtype="float32", shape=(None, 7))], {}, "7 columns, and .* makes 3"),
    "a matrix of lists": ([Input(name="x", dtype="float32", shape=(None, 3))], {}, "lists of int64"),
    "features that are not there": (
        [Input(name="x", dtype="float32", shape=(None, 2), features=("price", "usr"))],
        {},
        r"features \['usr'\].*Did you mean 'user' by 'usr'\? .*--rename COLUMN=usr",
    ),
    "a rename of nothing": ([Input(name="user")], {"usr": "user"}, "expected columns of the workflow"),
    "a rename to nothing": ([Input(name="user")], {"user": "id"}, "expected inputs of the model"),
    "strings": ([Input(name="user", dtype="object", shape=(None,))], {}, "strings are not served"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_said_with_both_sides(case: str) -> None:
    inputs, renames, message = REFUSED[case]
    with pytest.raises(ExportError, match=message):
        match(inputs, COLUMNS, renames, "the model")


def test_all_that_does_not_fit_is_said_at_once() -> None:
    inputs = [Input(name="price", dtype="int64", shape=(None,)), Input(name="nobody"), Input(name="user" + NNZS)]
    with pytest.raises(ExportError) as refused:
        match(inputs, COLUMNS, {}, "the model")
    assert all(part in str(refused.value) for part in ("'price'", "'nobody'", "user__nnzs"))


def test_a_number_too_large_for_the_model_becomes_infinite_without_a_word() -> None:
    (feed,) = match(
        [
            Input(name="price", dtype="float32", shape=(None,)),
        ][:1],
        [PRICE],
        {},
        "the model",
    )
    made = arrays_of([feed], ROWS.assign(price=1e300))["price"]
    assert np.isinf(made).all()
