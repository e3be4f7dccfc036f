import os
import subprocess
import sys
import time
from functools import partial

import psutil

from rankline.serving.loadtest.server_breakdown import ResourceMeter
from tests.harness.process.waiting import wait_until

SPIN = "import sys; block = bytearray(64 << 20); print('spins', flush=True)\nwhile True: pass"


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_a_process_that_spins_uses_a_core_and_its_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        meter, spent_s = ResourceMeter(lambda: (process.pid,)), partial(cpu_s, process.pid)
        outside_s, before_s = time.perf_counter(), spent_s()
        meter.begin()
        begin_s, inside_s = spent_s(), time.perf_counter()
        wait_until(lambda: spent_s() > begin_s + 0.2)
        end_s, inside_s = spent_s(), time.perf_counter() - inside_s
        meter.end()
        after_s, outside_s = spent_s(), time.perf_counter() - outside_s
        process.kill()
    used = meter.result()
    assert used is not None
    assert (end_s - begin_s) / outside_s <= used.cpu_cores <= (after_s - before_s) / inside_s
    assert used.memory_bytes > 64 << 20
    assert used.num_processes == 1


def test_a_server_elsewhere_has_no_figures() -> None:
    meter = ResourceMeter(tuple)
    meter.begin()
    meter.end()
    assert meter.result() is None


def test_a_process_that_ended_is_left_out() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    meter = ResourceMeter(lambda: (os.getpid(), gone.pid))
    meter.begin()
    meter.end()
    used = meter.result()
    assert used is not None
    assert used.num_processes == 1
