"""Checkpoints of TensorFlow's that hold a tensor in slices, as SavedModels do their variables."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from training.table_parts import TablePart


def fill_checkpoint(prefix: Path, parts: Mapping[str, TablePart]) -> None:
    """Put whole arrays into a checkpoint, in place of what it has under their names.

    Each block becomes a slice (see `tf.raw_ops.SaveV2`) in a file of its own; who reads the tensor sees no slices.

    Args:
        prefix: of the checkpoint's files.
        parts: name in the checkpoint → rows. The other workers have to send theirs, in the same order.
    """
    pieces = prefix.with_name(f"{prefix.name}-pieces")
    kept = tf.train.load_checkpoint(str(prefix))
    names = sorted(kept.get_variable_to_shape_map().keys() - parts.keys())
    written = [str(pieces / "kept")]
    tf.raw_ops.SaveV2(
        prefix=written[0],
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(kept.get_tensor(name)) for name in names],
    )
    for name, part in parts.items():
        first = 0
        for block in part.blocks():
            written.append(str(pieces / str(len(written))))
            place = ":".join([f"{first},{len(block)}", *["-"] * (block.ndim - 1)])
            shape = " ".join(map(str, part.shape))
            tf.raw_ops.SaveV2(
                prefix=written[-1], tensor_names=[name], shape_and_slices=[f"{shape} {place}"], tensors=[block]
            )
            first += len(block)
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        path.unlink()
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=written, destination_prefix=str(prefix), delete_old_dirs=True, allow_missing_files=False
    )
