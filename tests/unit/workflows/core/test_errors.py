import pickle

import pytest

from rankline.workflows.core.errors import ArtifactError, DataError, MissingExtraError


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "a.parquet cannot be read: not a parquet file.. Give another.",
            "a.parquet cannot be read: not a parquet file. Give another.",
        ),
        ("it is damaged (no footer.). Write it again.", "it is damaged (no footer). Write it again."),
        ("../data and work/.. are missing ... Give others.", "../data and work/.. are missing ... Give others."),
        ("the columns are PAR1\x15\x04\x1b[2J, Zoë", r"the columns are PAR1\x15\x04\x1b[2J, Zoë"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_what_a_library_said_is_quoted_as_a_person_would(message: str, shown: str) -> None:
    assert str(DataError(message)) == shown
    assert str(pickle.loads(pickle.dumps(ArtifactError(message)))) == shown


def test_a_missing_extra_crosses_a_process_boundary() -> None:
    error = MissingExtraError("serving", "cpu")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.extra) == (str(error), "cpu")
