"""Patches the program that runs Python models for NumPy 2.

`nvidia-pytriton` 0.7 is compiled with pybind11 2.10, which takes the size of an array's items from where NumPy 1 kept
it, 32 bytes into a dtype. NumPy 2 has its flags there, and the size 8 bytes further: every array would be taken for
empty. pybind11 asks NumPy for all else. So the five instructions that read the size get the new place, in the copy that
is started. pybind11 2.12 and later know both.
"""

from hashlib import sha256

from rankline.workflows.core.errors import ServerError

_KNOWN = {  # SHA-256 of the stubs of nvidia-pytriton 0.7.0
    "251c532e0af9c057d50784cc933fd52f304163e238d51e74c0ffc1c1790188b5",  # Python 3.10
    "a302adf6396501ac139da06f965aea1bf61929c99bf799f6b8797e071cd268f4",  # 3.11
    "41a7758c6f44520b846e90a5bf8b063f99aee01698c3e32113ce352fe8369921",  # 3.12
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8",  # 3.13
}
_KNOWS_BOTH = b"numpy._core"  # where pybind11 2.12 and later look first
# x86-64, with the number that becomes 0x28 last. No other instruction in these files looks like them.
_READS = (
    bytes.fromhex("48 63 40 20"),  # movslq 0x20(%rax),%rax: four times, in what makes a tensor of an array
    bytes.fromhex("48 8b 06 8b 40 20"),  # mov (%rsi),%rax; mov 0x20(%rax),%eax: once, in what makes an array
)
_NUMPY_2_OFFSET = b"\x28"


def fit_for_numpy(stub: bytes) -> bytes:
    """The stub as this process's NumPy needs it.

    Raises:
        ServerError: it is made for NumPy 1, and not one of those that are known.
    """
    import numpy as np  # here: that no server is installed is told without it

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
