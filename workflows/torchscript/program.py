"""Safe loading of TorchScript files. Files that could do anything but compute are rejected.

TorchScript is a program, and `torch.jit.load` trusts it: code can read and write files, a tensor can claim memory that
is not in the file, and deep nesting overflows the stack. A zip archive can also be crafted so that two readers find
different records in it. The records that a model needs are therefore checked and copied to a new archive in memory, and
PyTorch loads only that archive.
"""

import json
import os
import re
import resource
import struct
import tempfile
import threading
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.model_artifact import OUTPUTS
from rankline.workflows.schema.tensor_names import tensor_name
from rankline.workflows.torchscript.code import check_code
from rankline.workflows.torchscript.pickle import check_pickle

MAX_CODE_BYTES = 4 << 20
MAX_PICKLE_BYTES = 16 << 20
_MAX_DIRECTORY_BYTES = 16 << 20
_LOADING_BYTES = 768 << 20
"""Memory for loading a program of `MAX_CODE_BYTES`, in addition to the tensors."""
_CODE = re.compile(r"code/__torch__(/\w+)*\.py", re.ASCII)
_TENSOR = re.compile(r"(data|constants)/\w+", re.ASCII)
_PICKLES = ("constants.pkl", "data.pkl")
_OUTPUTS = f"extra/{OUTPUTS}"
_LIMITING = threading.Lock()
"""Locks the memory limit, which is set for the whole process."""
_COPIED = frozenset({"version", ".data/version", "byteorder"})
_DAMAGED = (zlib.error, struct.error, zipfile.BadZipFile, NotImplementedError)
_END = struct.Struct("<4s4HIIH")
_LOCATOR_64 = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCAL = struct.Struct("<4s5H3I2H")


def is_torch_script(path: Path) -> bool:
    """Whether a file is a zip archive with the records of a TorchScript file. Their contents are not checked."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except zipfile.BadZipFile:
        return False
    return "constants.pkl" in names and any(name.startswith("code/") for name in names)


def load_torch_script(path: Path, torch: Any, *, remedy: str) -> tuple[Any, list[str]]:
    """Check a TorchScript file and load it in eval mode with the given `torch`, which this package does not import.

    Returns:
        The model and the names of its outputs, which are empty if the file does not contain them.

    Raises:
        ArtifactError: the file is missing or damaged, does more than compute, or needs too much memory; then with
            `remedy`.
    """
    try:
        with path.open("rb") as file, _memory_file() as copy:
            outputs = _copy_checked(file, copy)
            with _LIMITING, _limited_memory(copy.tell()), quiet_torch_script():
                model = torch.jit.load(f"/dev/fd/{copy.fileno()}", map_location=torch.device("cpu")).eval()
    except ArtifactError as error:
        raise ArtifactError(f"{path} {error}") from None
    except MemoryError:
        raise ArtifactError(f"{path} needs too much memory to load. {remedy}") from None
    except (OSError, EOFError, ValueError, LookupError, RuntimeError, *_DAMAGED) as error:
        raise ArtifactError(f"{path} cannot be loaded as TorchScript: {_line(error)}. {remedy}") from None
    return model, outputs


def input_names(model: Any) -> list[str]:
    return [tensor_name(argument.name) for argument in model.forward.schema.arguments[1:]]


def _copy_checked(file: IO[bytes], copy: IO[bytes]) -> list[str]:
    end = _end_of_records(file)
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as checked:
        records = _records(archive, file, end)
        _check_sizes(records, file.seek(0, os.SEEK_END))
        texts = {name: archive.read(info) for name, info in records.items() if not _is_large(name)}
        outputs = _outputs(texts.pop(_OUTPUTS, b"[]"))
        check_code({name: content.decode("latin-1") for name, content in texts.items() if _CODE.fullmatch(name)})
        for name in _PICKLES:
            folder = name.replace(".pkl", "/")
            check_pickle(
                texts[name],
                {key.removeprefix(folder): info.file_size for key, info in records.items() if key.startswith(folder)},
            )
        for name, content in texts.items():
            checked.writestr(f"model/{name}", content)
        for name in filter(_TENSOR.fullmatch, records):
            with archive.open(records[name]) as source, checked.open(f"model/{name}", "w", force_zip64=True) as target:
                copyfileobj(source, target, 1 << 20)
    copy.seek(0, os.SEEK_END)
    copy.flush()
    return outputs


def _end_of_records(file: IO[bytes]) -> int:
    """Return the offset of the central directory.

    The end records must directly follow the directory and end the file: readers search for them in different ways, and
    agree only if there is a single possible position.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_64.size - _LOCATOR_64.size - _END.size))
    tail = file.read()
    end = _END.unpack(tail[-_END.size :])
    length, offset, stop = end[5], end[6], size - _END.size
    locator = tail[-_END.size - _LOCATOR_64.size : -_END.size]
    if locator[:4] == b"PK\x06\x07":
        stop -= _LOCATOR_64.size + _END_64.size
        end_64 = _END_64.unpack(tail[: _END_64.size])
        if end_64[0] != b"PK\x06\x06" or _LOCATOR_64.unpack(locator)[2] != stop:
            raise ArtifactError("has contradictory zip end records. Save the model again.")
        length, offset = end_64[8], end_64[9]
    if end[0] != b"PK\x05\x06" or end[7] or offset + length != stop:
        raise ArtifactError("has bytes before or after its zip archive, or is damaged. Save the model again.")
    if length > _MAX_DIRECTORY_BYTES:
        raise ArtifactError(
            f"has a record list of {length >> 20} MiB, expected at most {_MAX_DIRECTORY_BYTES >> 20} MiB."
        )
    return int(offset)


def _records(archive: zipfile.ZipFile, file: IO[bytes], end: int) -> dict[str, zipfile.ZipInfo]:
    names = [info.filename.partition("/") for info in archive.infolist()]
    if len({folder for folder, _, _ in names}) != 1 or len({name.lower() for _, _, name in names}) != len(names):
        raise ArtifactError("has records with duplicate names or in several folders. Save the model again.")
    if "model.json" in (name for _, _, name in names):
        raise ArtifactError("was saved by PyTorch 1.0 or older. Load and save it with a newer version.")
    position = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        _check_gap(info.header_offset - position)
        file.seek(info.header_offset)
        signature, _, flags, method, *_, name_size, extra_size = _LOCAL.unpack(file.read(_LOCAL.size))
        name = file.read(name_size)
        if (signature, flags, method) != (b"PK\x03\x04", info.flag_bits, info.compress_type):
            raise ArtifactError(f"has two conflicting descriptions of record {info.filename!r}. Save the model again.")
        if name != info.orig_filename.encode() or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArtifactError(
                f"has a record {info.filename!r} that has another name elsewhere or an unsupported compression. Save "
                "the model again."
            )
        position = info.header_offset + _LOCAL.size + name_size + extra_size + info.compress_size
    _check_gap(end - position)
    records = {name: info for (_, _, name), info in zip(names, archive.infolist(), strict=True) if _is_needed(name)}
    if missing := [name for name in ("version", *_PICKLES) if name not in records]:
        raise ArtifactError(
            f"is not a TorchScript file: it has no record {missing[0]!r}. Save the model with torch.jit.save."
        )
    return records


def _check_gap(num_bytes: int) -> None:
    """Check that the gap between two records is empty or has the size of a data descriptor."""
    if num_bytes not in (0, 12, 16, 20, 24):
        raise ArtifactError("has records that overlap or have bytes between them. Save the model again.")


def _is_needed(name: str) -> bool:
    return name in (*_COPIED, *_PICKLES, _OUTPUTS) or bool(_CODE.fullmatch(name)) or _is_large(name)


def _is_large(name: str) -> bool:
    return _TENSOR.fullmatch(name) is not None


def _check_sizes(records: Mapping[str, zipfile.ZipInfo], size: int) -> None:
    """Check that the total size of each kind of record is within its limit. Tensors are not compressed, so their limit
    is the file size.
    """
    sizes = {name: info.file_size for name, info in records.items()}
    for kind, found, limit in (
        ("tensors", sum(sizes[name] for name in sizes if _is_large(name)), size),
        ("pickles", sum(sizes[name] for name in _PICKLES), MAX_PICKLE_BYTES),
        ("code", sum(sizes[name] for name in sizes if _CODE.fullmatch(name)), MAX_CODE_BYTES),
        ("names", sum(sizes.get(name, 0) for name in (*_COPIED, _OUTPUTS)), MAX_CODE_BYTES),
    ):
        if found > limit:
            raise ArtifactError(f"has {kind} of {found:,} bytes, expected at most {limit:,}. Save a smaller model.")


def _outputs(content: bytes) -> list[str]:
    try:
        names = json.loads(content)
    except RecursionError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArtifactError(f"has a record named {OUTPUTS} that is not a list of names. Save the model again.")
    return names


def _memory_file() -> IO[bytes]:
    """Create a file that no other process can change."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("model.pt"), "w+b")
    return tempfile.TemporaryFile("w+b")


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Limit memory to what a model of this size needs, because constant folding could allocate any amount."""
    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    used = int(re.findall(r"VmData:\s+(\d+) kB", status.read_text(encoding="utf-8"))[0]) << 10
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [used + 2 * size + _LOADING_BYTES, *(limit for limit in (before, most) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


@contextmanager
def quiet_torch_script() -> Iterator[None]:
    """Suppress PyTorch 2.13's deprecation warnings for TorchScript, which Triton's PyTorch backend requires."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning)
        yield


def _line(error: Exception) -> str:
    """Return the last line of an error message, which states the reason. The preceding lines quote the code."""
    return str(error).strip().rpartition("\n")[2].rstrip(".")[:300]
