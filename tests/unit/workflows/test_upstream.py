import os
import subprocess
import sys

import pytest

STATE = """
import os
from google.protobuf.internal import api_implementation
print(api_implementation.Type(), os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"))
"""


@pytest.mark.parametrize("module", ["workflows.upstream", "serving.merlin"])
def test_merlin_leaves_protobuf_as_fast_as_it_is_here_and_in_the_processes_that_this_one_starts(module: str) -> None:
    environment = {name: value for name, value in os.environ.items() if "PROTOCOL_BUFFERS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}\n{STATE}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["upb", "None"]
