from pathlib import Path

import pytest

from rankline.serving.server.embedded import ServerConfig
from rankline.serving.server.logs import crash_site, failure_reason
from rankline.serving.server.triton_install import find_installation
from rankline.workflows.core.errors import ConfigError, ServerError

# Lines of release 24.10, shortened.
BAD_MODEL_LOG = r"""
I1120 10:21:55.487300 16080 cuda_memory_manager.cc:117] "CUDA memory pool disabled"
E1120 10:21:55.487409 16080 server.cc:241] "CudaDriverHelper has not been initialized."
E1120 10:21:55.488353 16080 model_repository_manager.cc:1460] "Poll failed for model directory 'b': unexpected pair"
E1120 10:21:59.802904 16080 backend_model.cc:692] "ERROR: Failed to create instance: TritonModelException: no SavedModel.\n\nAt:\n  /t/model.py(65): initialize\n"
E1120 10:21:59.803020 16080 model_lifecycle.cc:642] "failed to load 'a' version 1: Internal: TritonModelException: no SavedModel.\n\nAt:\n  /t/model.py(65): initialize\n"
I1120 10:21:59.803057 16080 model_lifecycle.cc:777] "failed to load 'a'"
error: creating server: Internal - failed to load all models
"""  # noqa: E501


def config(**changes: object) -> ServerConfig:
    return ServerConfig(**{"repositories": (Path("models"),), **changes})  # type: ignore[arg-type]


def test_refuses_what_cannot_be_served() -> None:
    with pytest.raises(ConfigError, match="at least one directory"):
        config(repositories=())
    with pytest.raises(ConfigError, match="grpc_port is 70000, expected 0"):
        config(grpc_port=70000)


def test_reason_names_each_model_without_its_traceback() -> None:
    assert set(failure_reason(BAD_MODEL_LOG).splitlines()) == {
        "Model 'a': no SavedModel.",
        "Model 'b': unexpected pair",
    }


def test_reason_without_a_model_is_the_last_error_or_line() -> None:
    assert (
        failure_reason('x\nE1120 10:21:55.487409 1 main.cc:1] "failed to start GRPC"\nbye\n') == "failed to start GRPC"
    )
    assert failure_reason("loading\nlibfoo.so: cannot open shared object file\n") == (
        "libfoo.so: cannot open shared object file"
    )
    assert failure_reason(BAD_MODEL_LOG.splitlines()[2] + "\nbye\n") == "bye"
    assert failure_reason("") == "It wrote no log."


def test_what_every_start_without_a_gpu_logs_is_no_reason() -> None:
    noise = 'E1120 12:02:45.865440 1 ensemble_scheduler.cc:1468] "unable to create stream for m: CUDA driver version"'
    assert failure_reason(f"{noise}\nsignal (15) received\n") == "signal (15) received"


def test_says_what_is_missing_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.serving.server.triton_install.find_spec", lambda _: None)
    with pytest.raises(ServerError, match="pip install .*nvidia-pytriton=="):
        find_installation()


def test_a_crash_is_placed_by_its_stack() -> None:
    stack = """Signal (11) received.
 0# 0x000055B00EA5152D in /opt/tritonserver/bin/tritonserver
 1# 0x00007FE9EAA5A050 in /lib/x86_64-linux-gnu/libc.so.6
 2# 0x00007FE9EAAA3F16 in /opt/libtriton_core.so
 3# 0x00007FE9EAAA3F20 in /opt/libtriton_core.so
 4# TF_SessionRun in /opt/libtensorflow_cc.so.2
 5# 0x000055B00E9FE0C4 in /opt/tritonserver/bin/tritonserver
 6# __libc_start_main in /lib/x86_64-linux-gnu/libc.so.6
"""
    places = "libtriton_core.so, called by TF_SessionRun (libtensorflow_cc.so.2), called by tritonserver"
    assert crash_site("started\n" + stack) == places
    thrown = """terminate called after throwing an instance of 'boost::interprocess::lock_exception'
Signal (6) received.
 0# 0x0000563D28B7752D in /opt/tritonserver/bin/tritonserver
 1# 0x00007F82CCC5A050 in /lib/x86_64-linux-gnu/libc.so.6
 2# abort in /lib/x86_64-linux-gnu/libc.so.6
 3# __gxx_personality_v0 in /lib/x86_64-linux-gnu/libstdc++.so.6
 4# _Unwind_RaiseException in /lib/x86_64-linux-gnu/libgcc_s.so.1
 5# 0x00007F82C7C393CA in /opt/backends/python/libtriton_python.so
 6# __libc_start_main in /lib/x86_64-linux-gnu/libc.so.6
"""
    assert crash_site(thrown) == "libtriton_python.so, called by __libc_start_main (libc.so.6)"
    assert crash_site(thrown.partition(" 3#")[0]) == "abort (libc.so.6)"
    assert crash_site("Signal (15) received.\nthe end\n") == ""
