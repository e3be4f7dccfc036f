"""One-line explanations of errors from an MLflow store. Importing this module does not import MLflow."""

import shutil

from rankline.workflows.core.tracking_uri import without_credentials

_HINTS = {
    "UNAUTHENTICATED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    "PERMISSION_DENIED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, "
    "for a user with this permission",
    "ENDPOINT_NOT_FOUND": "no MLflow server responds at this address; check the path in MLFLOW_TRACKING_URI",
}


def reason_of(error: BaseException) -> str:
    files = error.args[0] if isinstance(error, shutil.Error) else ()
    text = str(files[0][-1] if files and isinstance(files, list) else error)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#####")] or [""]
    reason = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    if " failed with exception" in reason:
        reason = f"{reason.partition(' failed with exception')[0]} got no response"
    reason = without_credentials(reason.partition(". Response body:")[0]).rstrip(".")
    hint = _HINTS.get(str(getattr(error, "error_code", "")))
    return f"{reason} ({hint})" if hint else reason
