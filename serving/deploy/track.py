"""Start MLflow's server on PostgreSQL, after checking the connection and upgrading the tables if necessary.

    track.py [OPTIONS OF mlflow server]

Tables of an older MLflow are upgraded, which keeps their content. If the server cannot start, one line says why.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psycopg2  # type: ignore[import-untyped]
from alembic.script import ScriptDirectory
from alembic.util import CommandError

_OPTION = "--backend-store-uri="
_INSIDE = "docker compose exec postgres psql"
_ADVICE = {
    "password authentication failed": (
        "POSTGRES_PASSWORD in .env differs from the password that its volume was created with. Restore that one, or "
        f"set this one: {_INSIDE} -U mlflow -c '\\password'"
    ),
    "does not exist": f"its volume was created with another user or database. List its databases: {_INSIDE} --list",
    "": "check its log: docker compose logs postgres",
}


def main(arguments: list[str]) -> None:
    (uri,) = (argument.removeprefix(_OPTION) for argument in arguments if argument.startswith(_OPTION))
    version = _version(uri.replace("+psycopg2", ""))
    if version is not None and not _is_current(version):
        print("track: these tables were created by an older MLflow; upgrading them to this version.", file=sys.stderr)
        subprocess.run(["mlflow", "db", "upgrade", uri], check=True)
    os.execvp("mlflow", ["mlflow", "server", *arguments])


def _version(uri: str) -> str | None:
    """Return the schema version of MLflow's tables, or None if the tables do not exist yet."""
    try:
        connection = psycopg2.connect(uri, connect_timeout=10)
    except psycopg2.OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        advice = next(advice for words, advice in _ADVICE.items() if words in reason)
        sys.exit(f"track: PostgreSQL rejected MLflow's connection ({reason}): {advice}.")
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('alembic_version')")
        if cursor.fetchone() == (None,):
            return None
        cursor.execute("SELECT version_num FROM alembic_version")
        row = cursor.fetchone()
        return None if row is None else str(row[0])


def _is_current(version: str) -> bool:
    found = find_spec("mlflow")  # importing it takes seconds
    assert found is not None
    assert found.origin is not None
    migrations = ScriptDirectory(str(Path(found.origin).parent / "store/db_migrations"))
    try:
        migrations.get_revision(version)
    except CommandError:
        sys.exit(
            f"track: these tables were created by a newer MLflow (revision {version}), and this version cannot read "
            "them: use the newer image, or restore an earlier backup of the volume."
        )
    return version == migrations.get_current_head()


if __name__ == "__main__":
    main(sys.argv[1:])
