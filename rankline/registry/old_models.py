"""Lets MLflow load models registered before Rankline became a single package.

The `loader_module` of such a model has an old name, such as `training.saved_model`, and the loading process may not
import anything besides MLflow. MLflow imports the plug-ins of its entry-point group `mlflow.run_context_provider` when
it is imported itself, and importing any module of `rankline` makes the old names available.
"""


class NoContext:
    """An MLflow run-context plug-in that adds no tags to runs."""

    def in_context(self) -> bool:
        return False

    def tags(self) -> dict[str, str]:
        return {}
