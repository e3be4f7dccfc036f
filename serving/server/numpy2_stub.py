"""Patch the stub that runs Python models for NumPy 2.

`nvidia-pytriton` 0.7 is compiled with pybind11 2.10, which reads the item size of an array at NumPy 1's offset in a
dtype, 32 bytes. NumPy 2 has flags at this offset and the size 8 bytes later, so every array would appear empty. For
everything else pybind11 calls NumPy. Therefore the five instructions that read the size get the new offset, in the copy
of the stub that is started. pybind11 2.12 and later support both versions.
"""

from hashlib import sha256

from rankline.workflows.core.errors import ServerError

_KNOWN = {  # SHA-256 of the stubs of nvidia-pytriton 0.7.0
    "251c532e0af9c057d50784cc933fd52f304163e238d51e74c0ffc1c1790188b5",  # Python 3.10
    "a302adf6396501ac139da06f965aea1bf61929c99bf799f6b8797e071cd268f4",  # 3.11
    "41a7758c6f44520b846e90a5bf8b063f99aee01698c3e32113ce352fe8369921",  # 3.12
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8",  # 3.13
}
_KNOWS_BOTH = b"numpy._core"  # first module that pybind11 2.12 and later import
# x86-64 instructions whose last byte becomes 0x28. These byte sequences occur nowhere else in the files.
_READS = (
    bytes.fromhex("48 63 40 20"),  # movslq 0x20(%rax),%rax: four times, in the conversion of arrays to tensors
    bytes.fromhex("48 8b 06 8b 40 20"),  # mov (%rsi),%rax; mov 0x20(%rax),%eax: once, in the creation of arrays
)
_NUMPY_2_OFFSET = b"\x28"


def fit_for_numpy(stub: bytes) -> bytes:
    """Return the stub, patched if this process's NumPy requires it.

    Raises:
        ServerError: the stub is for NumPy 1, and is not a known version.
    """
    import numpy as np  # imported here: a missing server is reported without NumPy

    if np.lib.NumpyVersion(np.__version__) < "2.0.0" or _KNOWS_BOTH in stub:
        return stub
    if sha256(stub).hexdigest() not in _KNOWN:
        raise ServerError(
            "Triton's Python backend here is made for NumPy 1 and is not that of nvidia-pytriton 0.7.0 for x86-64, got "
            f"NumPy {np.__version__}. pip install --force-reinstall --no-deps nvidia-pytriton==0.7.0, or use a "
            "container of Triton."
        )
    for read in _READS:
        stub = stub.replace(read, read[:-1] + _NUMPY_2_OFFSET)
    return stub
