"""Several workers: `rankline train RECIPE --workers N` starts them, shows them as one run, and ends them together.

Each worker is our own command line once more. Its records (`rankline.worker`) come through its output; the rest of that
goes to a log for each worker.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rankline.elastic import ElasticRun
from rankline.horovodrun import WorkerGroup
from rankline.hosts import first_places
from rankline.launch_config import LaunchConfig
from rankline.listener import Listener, clear_logs
from training.config import WorkersConfig
from workflows.progress import Progress


def launch(
    command: Sequence[str], config: WorkersConfig, options: LaunchConfig, logs: Path, progress: Progress
) -> Mapping[str, str]:
    """Run a command as several workers until they end; return path, run_id and tracking_uri of the model.

    Raises:
        ConfigError: the hosts do not take so many workers.
        RanklineError: Horovod is missing, the workers could not be started, or one failed; the message names its log.
    """
    clear_logs(logs)
    number = options.num_workers(config)
    if config.is_elastic:
        return ElasticRun(command, config, options, logs, progress).run(number)
    hosts = first_places(options.find_hosts(config), number)
    progress.update(0, 1, f"starting {number} worker{'s' if number > 1 else ''}")
    with (
        Listener(logs, progress, mpi=options.mpi) as listener,
        WorkerGroup(command, hosts, options, start_timeout_s=config.timeout_s) as group,
    ):
        return listener.result(group.listen(listener))
