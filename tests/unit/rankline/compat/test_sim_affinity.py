import pytest

from rankline.compat.sim.affinity import MODES, cpus_of
from rankline.launch.affinity import Cpu
from rankline.workflows.core.errors import ConfigError

# Two sockets of two cores with two threads each.
CPUS = [Cpu(socket=n % 4 // 2, core=n % 2, number=n) for n in range(8)]
EXPECTED = {"socket": {0, 1, 4, 5}, "single": {0, 4}, "single_unique": {0, 4}}


@pytest.mark.parametrize("mode", MODES)
def test_modes_bind_a_process_that_is_alone(mode: str) -> None:
    assert cpus_of(mode, CPUS) == EXPECTED.get(mode, set(range(8)))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="--affinity is 'best'. Available: disabled, socket, "):
        cpus_of("best", CPUS)
