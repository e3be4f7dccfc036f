import sys

import pytest

from workflows.errors import MissingExtraError
from workflows.extras import require


def test_a_missing_extra_prints_its_install_line() -> None:
    with pytest.raises(
        MissingExtraError, match=r"training needs an extra.*pip install -c constraints\.txt -e '\.\[cpu\]'"
    ):
        require("no_such_module_anywhere", feature="training", extra="cpu")


def test_an_extra_that_is_there_is_no_obstacle_and_is_not_imported() -> None:
    require("this", feature="training", extra="cpu")
    assert "this" not in sys.modules
