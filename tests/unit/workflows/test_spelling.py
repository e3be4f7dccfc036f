from workflows.spelling import did_you_mean


def test_a_name_that_is_alike_is_offered_whatever_its_case() -> None:
    assert did_you_mean(["MOVIEID", "usrId", "price"], ["userId", "movieId"]) == (
        " Did you mean 'movieId' by 'MOVIEID', 'userId' by 'usrId'?"
    )
    assert did_you_mean(["color"], ["userId", "movieId"]) == ""
