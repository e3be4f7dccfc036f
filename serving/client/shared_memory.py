"""Inputs in memory that client and server share: the message then only says where they are.

tritonclient's own module for this needs `pkg_resources`, which setuptools no longer has, so regions are made with the
standard library. The server maps a region by its name below /dev/shm.
"""

import threading
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from serving.client.failures import CallError
from serving.client.tensors import WireTensor

_SMALLEST_BYTES = 1 << 20
_ALIGNMENT = 64  # what vectorised code likes best


class Region:
    """Memory for the inputs of one message at a time.

    Args:
        num_bytes: its size.
    """

    def __init__(self, num_bytes: int) -> None:
        self._memory = SharedMemory(create=True, size=num_bytes)
        assert self._memory.buf is not None
        self._bytes = self._memory.buf
        self.num_bytes = num_bytes
        self.name = self._memory.name
        self.is_registered = False

    @property
    def registration(self) -> Any:
        """What tells the server to map it."""
        return service_pb2.SystemSharedMemoryRegisterRequest(
            name=self.name, key=f"/{self.name}", byte_size=self.num_bytes
        )

    def put(self, model_name: str, tensors: Sequence[WireTensor], output_name: str) -> Any:
        """Copy tensors into it; returns the message that points at them."""
        message = service_pb2.ModelInferRequest(model_name=model_name)
        message.outputs.add(name=output_name)
        offset = 0
        for tensor in tensors:
            entry = message.inputs.add(name=tensor.schema.name, datatype=tensor.schema.datatype, shape=tensor.shape)
            num_bytes = tensor.data.nbytes
            if not num_bytes:  # there is nothing to point at
                message.raw_input_contents.append(b"")
                continue
            target = np.frombuffer(self._bytes, np.uint8, num_bytes, offset)
            target[:] = tensor.data.reshape(-1).view(np.uint8)
            entry.parameters["shared_memory_region"].string_param = self.name
            entry.parameters["shared_memory_byte_size"].int64_param = num_bytes
            entry.parameters["shared_memory_offset"].int64_param = offset
            offset += _aligned(num_bytes)
        return message

    def unlink(self) -> None:
        """Give it up; what the server has mapped stays until it unmaps it."""
        self._memory.close()
        self._memory.unlink()


class RegionPool:
    """Regions that are used again; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Region] = []
        self._all: list[Region] = []

    def take(self, tensors: Sequence[WireTensor]) -> Region:
        """A region with room for tensors, that nobody else has."""
        num_bytes = sum(_aligned(tensor.data.nbytes) for tensor in tensors)
        with self._lock:
            fitting = [region for region in self._free if region.num_bytes >= num_bytes]
            if fitting:
                region = min(fitting, key=lambda region: region.num_bytes)
                self._free.remove(region)
                return region
            region = Region(max(1 << (num_bytes - 1).bit_length() if num_bytes else 0, _SMALLEST_BYTES))
            self._all.append(region)
            return region

    def give_back(self, region: Region) -> None:
        """Let others have a region."""
        with self._lock:
            self._free.append(region)

    def give_back_failed(self, region: Region, failure: CallError) -> None:
        """Let others have the region of a request that failed, if that is safe.

        It is not where the server may still read it. Where a server has ended, the next one knows none of the regions.
        """
        if not region.is_registered or (failure.is_refused and not failure.is_unknown_region):
            self.give_back(region)
        elif not failure.is_late:
            with self._lock:
                self._free.clear()

    def close(self) -> list[str]:
        """Give up all regions; returns the names of those that the server was told of."""
        with self._lock:
            regions, self._all, self._free = self._all, [], []
        for region in regions:
            region.unlink()
        return [region.name for region in regions if region.is_registered]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
