"""Lets MLflow load models that were registered before all of Rankline became one package.

Their `loader_module` has an old name, such as `training.saved_model`, and a process that loads a model may import no
more than MLflow. MLflow imports the plug-ins of its entry-point group `mlflow.run_context_provider` when it is itself
imported, and importing any module of `rankline` is enough for the old names to be found.
"""


class NoContext:
    """A plug-in of MLflow's that adds no tags to runs."""

    def in_context(self) -> bool:
        return False

    def tags(self) -> dict[str, str]:
        return {}
