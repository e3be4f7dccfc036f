import pytest

from rankline.workflows.core.suggestions import did_you_mean

NAMES = ["userId", "movieId", "batch_size", "--epochs", "engine", "speed", "threads", "instances", "label", "auc", "N"]
MEANT = {
    "MOVIEID": "movieId",  # another case
    "n": "N",
    "batch-size": "batch_size",  # what stands between words
    "batchsize": "batch_size",
    "user_id": "userId",
    "user": "userId",  # two are missing
    "epochs": "--epochs",
    "--epoch": "--epochs",  # a plural
    "thread": "threads",
    "instance": "instances",
    "usrId": "userId",  # a letter is missing, too many, or another one
    "enginne": "engine",
    "sped": "speed",
    "speet": "speed",
    "lable": "label",  # two are swapped
    "bacth_sise": "batch_size",  # two mistakes in a long word
    "insances_": "instances",
}


@pytest.mark.parametrize("wrong", MEANT)
def test_a_slip_is_met(wrong: str) -> None:
    assert did_you_mean([wrong], NAMES) == f" Did you mean {MEANT[wrong]!r} by {wrong!r}?"


@pytest.mark.parametrize("wrong", ["fused", "color", "price", "table", "steps", "delay", "x", "id", "--", ""])
def test_another_word_is_none(wrong: str) -> None:
    assert did_you_mean([wrong], NAMES) == ""


def test_all_that_are_alike_are_named() -> None:
    assert did_you_mean(["MOVIEID", "usrId", "price"], ["userId", "movieId"]) == (
        " Did you mean 'movieId' by 'MOVIEID', 'userId' by 'usrId'?"
    )


def test_the_closest_is_meant() -> None:
    assert did_you_mean(["movielen"], ["movielens2", "movielens", "movieless"]) == (
        " Did you mean 'movielens' by 'movielen'?"
    )
