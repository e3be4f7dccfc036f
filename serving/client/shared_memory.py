"""Inputs in memory that client and server share: the message then only says where they are.

tritonclient's own module for this needs `pkg_resources`, which setuptools no longer has, so regions are made with the
standard library. The server maps a region by its name below /dev/shm.

A request that was given up, being late or cancelled, may still be read by the server whenever it gets to it. Its region
is *lost*: nothing is written to it any more. Before a new region is made, the server is asked to unregister the lost
ones. Triton 24.09 and 24.10 refuse while they still use one, later releases unmap it when they are done with it; an
earlier one would read what is no longer there (its pull requests 7567 and 7743). So there are at most as many lost
regions as requests that the server has not finished, and those that failed since a region was last made.
"""

import threading
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from serving.client.failures import CLOSED, CallError
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

    @property
    def unregistration(self) -> Any:
        """What tells the server to unmap it; one that does not know it has nothing against that."""
        return service_pb2.SystemSharedMemoryUnregisterRequest(name=self.name)

    def put(self, model_name: str, tensors: Sequence[WireTensor], outputs: Sequence[str]) -> Any:
        """Copy tensors into it; returns the message that points at them."""
        message = service_pb2.ModelInferRequest(model_name=model_name)
        for name in outputs:
            message.outputs.add(name=name)
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
        self._all: list[Region] = []
        self._free: list[Region] = []
        self._lost: list[Region] = []
        self._is_closed = False

    def take(self, tensors: Sequence[WireTensor]) -> Region | None:
        """A free region with room for tensors, that nobody else has then; None if there is none.

        Raises:
            CallError: the pool is closed.
        """
        num_bytes = _size_of(tensors)
        with self._lock:
            if self._is_closed:
                raise CallError(CLOSED, "its memory was given back")
            fitting = [region for region in self._free if region.num_bytes >= num_bytes]
            if not fitting:
                return None
            region = min(fitting, key=lambda region: region.num_bytes)
            self._free.remove(region)
            return region

    def make(self, tensors: Sequence[WireTensor]) -> Region:
        """A new region with room for tensors, that nobody else has."""
        num_bytes = _size_of(tensors)
        region = Region(max(1 << (num_bytes - 1).bit_length() if num_bytes else 0, _SMALLEST_BYTES))
        with self._lock:
            self._all.append(region)
        return region

    def give_back(self, region: Region) -> None:
        """Let others have a region."""
        with self._lock:
            self._free.append(region)

    def give_back_failed(self, region: Region, error: BaseException) -> None:
        """Let others have the region of a request that failed, if that is safe.

        It is not where the server may still read it. Where a server has ended, the next one knows none of the regions.
        """
        is_refused = isinstance(error, CallError) and error.is_refused and not error.is_unknown_region
        has_ended = isinstance(error, CallError) and not error.is_late and not is_refused
        with self._lock:
            (self._free if is_refused else self._lost).append(region)
            if has_ended:
                self._lost += self._free
                self._free.clear()

    def lost(self) -> tuple[Region, ...]:
        """Regions that the server may still read."""
        with self._lock:
            return tuple(self._lost)

    def forget(self, region: Region) -> None:
        """Give up a lost region that the server has unregistered."""
        with self._lock:
            if region not in self._lost:  # another thread was faster
                return
            self._lost.remove(region)
            self._all.remove(region)
        region.unlink()

    def close(self) -> list[Region]:
        """Give up all regions, for the server to unregister."""
        with self._lock:
            self._is_closed = True
            regions, self._all, self._free, self._lost = self._all, [], [], []
        for region in regions:
            region.unlink()
        return regions


def _size_of(tensors: Sequence[WireTensor]) -> int:
    return sum(_aligned(tensor.data.nbytes) for tensor in tensors)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
