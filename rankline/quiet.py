"""A process in which the libraries keep what they have to say to themselves."""

import logging
import os
import warnings


def quiet_libraries() -> None:
    """Silence start-up notices and deprecations that a user can do nothing about; call it before importing them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # `import tensorflow` imports one Keras: the one that we use
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # deprecations of tf.feature_column
    warnings.filterwarnings("ignore")
