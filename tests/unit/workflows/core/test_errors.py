"""Messages: what libraries said, figures in words, and slips of spelling."""

import pickle

import pytest

from rankline.workflows.core.errors import ArtifactError, DataError, MissingExtraError
from rankline.workflows.core.formatting import did_you_mean, quality_figure


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
def test_message_of_a_library_is_quoted_cleanly(message: str, shown: str) -> None:
    assert str(DataError(message)) == shown
    assert str(pickle.loads(pickle.dumps(ArtifactError(message)))) == shown


def test_missing_extra_crosses_a_process_boundary() -> None:
    error = MissingExtraError("serving", "cpu")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.extra) == (str(error), "cpu")


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [(0.81234, "", "0.8123"), (-0.25, "+", "-0.2500"), (95258.1025, "", "95,258.1"), (120.5, "+", "+120.5")],
)
def test_metric_has_the_digits_that_are_read(value: float, sign: str, text: str) -> None:
    assert quality_figure(value, sign) == text


NAMES = ["userId", "movieId", "batch_size", "--epochs", "engine", "speed", "threads", "instances", "label", "auc", "N"]
MEANT = {
    "MOVIEID": "movieId",  # another case
    "n": "N",
    "batch-size": "batch_size",  # what stands between words
    "user": "userId",  # two are missing
    "epochs": "--epochs",
    "thread": "threads",
    "usrId": "userId",  # a letter is missing, too many, or another one
    "speet": "speed",
    "lable": "label",  # two are swapped
    "insances_": "instances",
}


@pytest.mark.parametrize("wrong", MEANT)
def test_slip_is_met(wrong: str) -> None:
    assert did_you_mean([wrong], NAMES) == f" Did you mean {MEANT[wrong]!r} by {wrong!r}?"


@pytest.mark.parametrize("wrong", ["fused", "price", "x", "id", "--", ""])
def test_suggestion_is_empty_for_unrelated_words(wrong: str) -> None:
    assert did_you_mean([wrong], NAMES) == ""


def test_did_you_mean_names_each_similar_name() -> None:
    assert did_you_mean(["MOVIEID", "usrId", "price"], ["userId", "movieId"]) == (
        " Did you mean 'movieId' by 'MOVIEID', 'userId' by 'usrId'?"
    )


def test_beginning_of_a_single_name_is_met() -> None:
    assert did_you_mean(["--data"], ["--data-dir", "--download"]) == " Did you mean '--data-dir' by '--data'?"
    assert did_you_mean(["--data"], ["--data-dir", "--data-format"]) == ""


def test_closest_is_meant() -> None:
    assert did_you_mean(["movielen"], ["movielens2", "movielens", "movieless"]) == (
        " Did you mean 'movielens' by 'movielen'?"
    )
