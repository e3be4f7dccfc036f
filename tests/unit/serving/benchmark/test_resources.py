import os
import subprocess
import sys
import time

from serving.benchmark.resources import ResourceMeter

SPIN = "import sys; block = bytearray(64 << 20); print('spins', flush=True)\nwhile True: pass"


def test_a_process_that_spins_uses_a_core_and_its_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        meter = ResourceMeter(lambda: (process.pid,))
        meter.begin()
        time.sleep(0.5)  # what is measured is time
        meter.end()
        process.kill()
    used = meter.result()
    assert used is not None
    assert 0.1 < used.cpu_cores < 1.1
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
