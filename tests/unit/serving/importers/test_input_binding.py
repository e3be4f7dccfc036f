"""Which columns feed which inputs, and what is said where they do not fit."""

import numpy as np
import pandas as pd
import pytest

from rankline.serving.importers.input_binding import MATRIX, Encoded, Input, arrays_of, check_sample, dtypes_of, match
from rankline.workflows.core.errors import DataError, ExportError
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES
from tests.factories.importable_models import COLUMNS, LAYOUTS, ROWS

USER, PRICE, _ = COLUMNS


def test_lists_are_flat_with_offsets_or_padded_with_zeros() -> None:
    inputs = (*LAYOUTS["[rows, 1], lists values and offsets"], Input(name="tags", dtype="int64", shape=(None, None)))
    arrays = arrays_of(match(inputs, COLUMNS, {}), ROWS)
    assert arrays["tags" + VALUES].tolist() == [1, 2, 5, 6, 7, 8, 3, 2, 2, 4]
    assert arrays["tags" + OFFSETS].tolist() == [0, 2, 2, 6, 7, 10]
    assert arrays["tags"].tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [5, 6, 7, 8], [3, 0, 0, 0], [2, 2, 4, 0]]


def test_matrix_takes_all_columns_in_order() -> None:
    (feed,) = match([Input(name="float_input", dtype="float32", shape=(None, 2))], [USER, PRICE], {})
    assert (feed.kind, feed.columns) == (MATRIX, ("user", "price"))
    assert arrays_of([feed], ROWS)["float_input"].tolist()[1] == [3.0, -1.25]
    assert dtypes_of([feed]) == {"user": "float32", "price": "float32"}


def test_matrix_with_feature_names_takes_those_in_their_order() -> None:
    entry = Input(name="rows", dtype="float32", shape=(None, 2), features=("price", "id"))
    columns = [USER, Encoded(name="label", dtype="int8"), PRICE]
    (feed,) = match([entry], columns, {"user": "id"})
    assert feed.columns == ("price", "user")


def test_numbered_features_are_matched_by_number_or_position() -> None:
    entry = Input(name="x", dtype="float32", shape=(None, 2), numbered=("f0", "f1"))
    (by_position,) = match([entry], [USER, PRICE], {})
    (by_number,) = match([entry], [USER, PRICE], {"price": "f0", "user": "f1"})
    assert (by_position.columns, by_position.by_position) == (("user", "price"), True)
    assert (by_number.columns, by_number.by_position) == (("price", "user"), False)


def test_renamed_column_replaces_one_of_that_name() -> None:
    (feed,) = match([Input(name="price")], [USER, PRICE], {"user": "price"})
    assert feed.columns == ("user",)


BAD_SAMPLES: dict[str, tuple[Input, pd.DataFrame, str]] = {
    "an id that wraps around": (
        Input(name="user", dtype="int32", shape=(None, 1)),
        ROWS.assign(user=[0, 2**32 + 5, 7, 1, 9]),
        r"column 'user' contains 4294967301, which is out of range for int32\. Drop the rows with these values",
    ),
    "a list that is too long": (
        Input(name="tags", dtype="int64", shape=(None, 3)),
        ROWS,
        r"column 'tags' has a list of 4 values, expected at most 3\.",
    ),
    "a value of a list that wraps around": (
        Input(name="tags" + VALUES, dtype="uint8", shape=(None,)),
        ROWS.assign(tags=[[1], [], [300], [2], [3]]),
        r"column 'tags' contains 300, which is out of range for uint8\.",
    ),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_sample_that_does_not_fit_the_model_is_refused(case: str) -> None:
    entry, rows, message = BAD_SAMPLES[case]
    feeds = match([entry], COLUMNS, {})
    with pytest.raises(DataError, match=message):
        check_sample(feeds, rows)


REFUSED = {
    "another name": (
        [Input(name="user_id", dtype="int64", shape=(None, 1))],
        {},
        r"takes 'user_id' \(int64\[\?, 1\]\), but the workflow has 'user' \(int64\), .*"
        r"Did you mean 'user' by 'user_id'\? .*--rename COLUMN=user_id",
    ),
    "floats as ids": ([Input(name="price", dtype="int64", shape=(None, 1))], {}, "floats would lose"),
    "another rank": ([Input(name="user", dtype="int64", shape=(None, 3))], {}, "one value per row"),
    "a matrix of another width": (
        [Input(name="x", dtype="float32", shape=(None, 7))],
        {},
        "7 columns, but the workflow has 3",
    ),
    "features that are not there": (
        [Input(name="x", dtype="float32", shape=(None, 2), features=("price", "usr"))],
        {},
        r"features \['usr'\].*Did you mean 'user' by 'usr'\? .*--rename COLUMN=usr",
    ),
    "a rename of nothing": ([Input(name="user")], {"usr": "user"}, "expected columns of the workflow"),
    "a rename to nothing": ([Input(name="user")], {"user": "id"}, r"names unknown inputs \['id'\]\. The model"),
    "strings": ([Input(name="user", dtype="object", shape=(None,))], {}, "strings are not supported"),
    "lengths that wrap around": (
        [Input(name="tags" + NNZS, dtype="int8", shape=(None, 1))],
        {},
        "lengths or offsets of lists, which must be int32 or int64",
    ),
    "two columns of one name": (
        [Input(name="user")],
        {"user": "user", "price": "user"},
        "several columns to the same name",
    ),
    "some of the numbered features": (
        [Input(name="x", dtype="float32", shape=(None, 2), numbered=("f0", "f1"))],
        {"price": "f0"},
        r"features \['f1'\], but the workflow has \['user', 'price', 'tags'\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_columns_that_do_not_fit_inputs_are_refused(case: str) -> None:
    inputs, renames, message = REFUSED[case]
    with pytest.raises(ExportError, match=message):
        match(inputs, COLUMNS, renames)


def test_column_without_a_name_is_refused_only_as_an_input() -> None:
    columns = [Encoded(name="", dtype="int64"), USER]
    for entry in (Input(name="x", dtype="float32", shape=(None, 2)), Input(name="")):
        with pytest.raises(ExportError, match=r"a column of the sample that has no name, .*Name the column, or remove"):
            match([entry], columns, {}, "the sample")
    (feed,) = match([Input(name="x", shape=(None, 1), features=("user",))], columns, {})
    assert feed.columns == ("user",)


def test_mismatches_are_reported_together() -> None:
    inputs = [Input(name="price", dtype="int64", shape=(None,)), Input(name="nobody"), Input(name="user" + NNZS)]
    with pytest.raises(ExportError) as refused:
        match(inputs, COLUMNS, {})
    assert all(part in str(refused.value) for part in ("'price'", "'nobody'", "user__nnzs"))


def test_number_beyond_float32_becomes_infinite() -> None:
    (feed,) = match([Input(name="price", dtype="float32", shape=(None,))], [PRICE], {})
    made = arrays_of([feed], ROWS.assign(price=1e300))["price"]
    assert np.isinf(made).all()
