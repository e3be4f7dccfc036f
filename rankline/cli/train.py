"""The command `train`, which trains with one or more workers."""

import os
import sys

from rankline.cli.options.arguments import RecipeName, Seeds, WorkDir
from rankline.cli.options.recipe_options import with_recipe_options
from rankline.launch.config import LaunchConfig
from rankline.recipes import recipe_named
from rankline.recipes.overrides import Overrides
from rankline.recipes.workspace import WORK_DIR, Workspace
from rankline.terminal.console import CONSOLE, note
from rankline.training.config.train import SessionConfig
from rankline.training.distributed.config import WorkersConfig


@with_recipe_options(SessionConfig, WorkersConfig, LaunchConfig, of_recipe=lambda recipe: (recipe.train,))
def train_command(recipe: RecipeName, *, work_dir: WorkDir = WORK_DIR, seeds: Seeds = 1, overrides: Overrides) -> None:
    """Train on prepared data and track the run in MLflow. `rankline train RECIPE --help` shows the recipe's options.

    **Examples**

    rankline train movielens --epochs 5 --learning-rate 0.002

    rankline train criteo-dcnv2 --model dlrm --top-mlp 64,32

    rankline train movielens --checkpoint-every 500

    rankline train movielens --checkpoint-every 500 --resume

    rankline train movielens --precision bfloat16 --xla --tensorboard

    rankline train movielens --workers 4

    rankline train movielens --hosts a:4,b:4 --scale-learning-rate sqrt --warmup-steps 500
    """
    from rankline.launch.worker import Worker, limit_threads, pin_cores

    worker = Worker.from_environment(os.environ)
    with worker.at_work() as display:
        several, options = overrides.apply(WorkersConfig()), overrides.apply(LaunchConfig())
        limit_threads(options.threads, worker.local_size)
        if options.bind_cores:
            pin_cores(worker)
        from rankline.api import pipeline
        from rankline.training.run.checkpoint import Generation
        from rankline.workflows.preprocess.prepared_data import PreparedData

        chosen, session = recipe_named(recipe).with_overrides(overrides), overrides.apply(SessionConfig())
        workspace = Workspace(recipe=chosen.name, root=work_dir)
        if worker.is_alone and chosen.model_choices:
            note(chosen.model_choices)
        if worker.is_alone and options.is_asked_for(several):
            from rankline.launch.elastic import launch
            from rankline.runs.store import check_store, uri_of
            from rankline.training.trainers import trainer_for

            # Fail here instead of in every worker.
            prepared = PreparedData.load(workspace.prepared, chosen.dataset)
            trainer_for(chosen.train.model.framework).check(
                prepared.spec, chosen.train, num_workers=max(several.max_workers, options.num_workers(several))
            )
            check_store(uri_of(work_dir))
            command = [sys.executable, *sys.orig_argv[1:]]
            with display.stage("train") as progress:
                model = launch(command, several, options, workspace.workers, progress)
        else:
            with worker.in_world(several) as world:
                prepared = PreparedData.load(workspace.prepared, chosen.dataset)
                trained, _ = pipeline.train(
                    chosen,
                    prepared,
                    workspace,
                    display,
                    seeds,
                    session,
                    workers=several,
                    world=world,
                    generation=Generation.from_environment(os.environ),
                    observers=worker.observers,
                )
            if worker.is_alone:
                from rankline.terminal.summary import print_comparison

                print_comparison(trained, CONSOLE)
            model = {"path": str(trained.path), "run_id": trained.run_id, "tracking_uri": trained.tracking_uri}
    worker.show(model)
