"""The verb `transcode`: files with a feature spec in another format."""

from pathlib import Path
from typing import Annotated

import typer

from rankline.cli.arguments import Prebatch
from rankline.display import Stages, say
from workflows.spec_file import FILE_NAME, FILE_TYPES


def transcode_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help=f"Directory with {FILE_NAME}, or a spec of another name.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Directory for the new files and their spec.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(FILE_TYPES)}.")],
    prebatch: Prebatch = 1,
) -> None:
    """Any files with a feature spec to CSV, Parquet or TFRecord; chunks of a mapping become one.

    CSV files have no header, and the numbers of a list are one field with spaces between them.

    **Examples**

    rankline transcode mine mine-parquet --to parquet

    rankline transcode mine mine-tfrecord --to tfrecord --prebatch 4096
    """
    with Stages(["transcode"]) as stages, stages.stage("transcode") as progress:
        from training.transcode import transcode

        spec = transcode(directory, output, to, prebatch=prebatch, progress=progress)
    rows = ", ".join(f"{chunks[0].num_rows:,} {mapping}" for mapping, chunks in spec.mappings.items())
    say(f"{to}: {output} ({rows} rows)")
