"""Make unary gRPC calls directly over HTTP/2 in a tenth of grpcio's CPU time, so that the client is not the bottleneck.

Requests differ only in their message, so everything else is precomputed as bytes. The module implements the parts of
HTTP/2 (RFC 9113) that a gRPC client needs: flow control in both directions, SETTINGS, PING, RST_STREAM and GOAWAY.
Header compression (RFC 7541) is not used in requests, and used without a table in responses, which `hpack` decodes.
"""

import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpack import Decoder, HPACKError

from rankline.serving.loadtest.generator.transport import CONNECT_TIMEOUT_S, OK, STATUS_NAMES, Answer
from rankline.workflows.core.errors import ServerError

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED, _PRIORITY = 4, 8, 32
_TABLE_SIZE, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 1, 3, 4, 5  # settings
_CANCEL = 8
_MAX_WINDOW_BYTES = (1 << 31) - 1
_MAX_FRAME_BYTES = (1 << 24) - 1
_READ_BYTES = 1 << 18
_KNOWN_BLOCKS = 4096
# HTTP/2 error code of a reset → gRPC status (PROTOCOL-HTTP2.md, "Errors"); other codes are INTERNAL.
_RESETS = {7: "UNAVAILABLE", _CANCEL: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}


@dataclass(slots=True)
class _Call:
    key: int
    window: int
    unsent: memoryview
    body: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)


class Http2Connection:
    """A `Transport` over a TCP connection without TLS. Raises ServerError if no server listens at HOST:PORT."""

    def __init__(self, url: str, path: str) -> None:
        host, _, port = url.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise ServerError(f"no server answers at {url} ({error}). Start one with `rankline serve`.") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self.failure = ""
        self.capacity = 1 << 31
        self._request_headers = _request_headers(url, path)
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = 0
        self._blocks: dict[bytes, dict[str, str]] = {}
        self._calls: dict[int, _Call] = {}  # stream id → call
        self._streams: dict[int, int] = {}  # key → stream id
        self._next_stream = 1
        self._waiting: dict[int, None] = {}  # streams blocked by flow control, in order
        self._window, self._initial_window, self._max_frame = 65_535, 65_535, 16_384
        self._unreported = 0  # received bytes not yet returned to the connection's window
        self._in, self._out = bytearray(), bytearray(_PREFACE)
        settings = ((_TABLE_SIZE, 0), (_INITIAL_WINDOW, _MAX_WINDOW_BYTES), (_MAX_FRAME, _MAX_FRAME_BYTES))
        self._write(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in settings))
        self._write(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MAX_WINDOW_BYTES - 65_535))
        self.flush()

    def send(self, key: int, message: bytes) -> None:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._streams[key] = stream
        self._write(_HEADERS, _END_HEADERS, stream, self._request_headers)
        call = _Call(key, self._initial_window, memoryview(b"\0" + len(message).to_bytes(4, "big") + message))
        self._calls[stream] = call
        self._push(stream, call)

    def flush(self) -> None:
        try:
            while self._out and not self.failure:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(f"the connection broke: {error}")

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Wait for data, and return the responses that have arrived. After a connection failure, return the failure for
        each pending call.
        """
        self.flush()
        answers: list[Answer] = []
        if not self.failure:
            readable, writable, _ = select.select(
                [self._socket], [self._socket] if self._out else [], [], max(timeout_s, 0)
            )
            if writable:
                self.flush()
            if readable:
                self._read(answers)
        if self.failure:
            at_ns = time.perf_counter_ns()
            answers += [Answer(call.key, at_ns, "UNAVAILABLE", self.failure.encode()) for call in self._calls.values()]
            self._calls.clear()
            self._streams.clear()
        return answers

    def cancel(self, key: int) -> None:
        stream = self._streams.pop(key)
        del self._calls[stream]
        self._waiting.pop(stream, None)
        self._write(_RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))

    def close(self) -> None:
        self._socket.close()

    def _write(self, kind: int, flags: int, stream: int, payload: bytes | memoryview) -> None:
        self._out += struct.pack(">IBI", len(payload) << 8 | kind, flags, stream)
        self._out += payload

    def _push(self, stream: int, call: _Call) -> None:
        while call.unsent:
            size = min(len(call.unsent), call.window, self._window, self._max_frame)
            if size <= 0:
                self._waiting[stream] = None
                return
            part, call.unsent = call.unsent[:size], call.unsent[size:]
            self._write(_DATA, 0 if call.unsent else _END_STREAM, stream, part)
            call.window -= size
            self._window -= size
        self._waiting.pop(stream, None)

    def _push_waiting(self) -> None:
        for stream in list(self._waiting):
            if self._window <= 0:
                return
            self._push(stream, self._calls[stream])

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._out.clear()

    def _read(self, answers: list[Answer]) -> None:
        try:
            received = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"the connection broke: {error}")
            return
        if not received:
            self._fail("the server closed the connection")
            return
        at_ns = time.perf_counter_ns()
        self._in += received
        begin, buffer = 0, self._in
        while len(buffer) - begin >= 9:
            size_and_kind, flags, stream = struct.unpack_from(">IBI", buffer, begin)
            end = begin + 9 + (size_and_kind >> 8)
            if end > len(buffer):
                break
            payload = bytes(buffer[begin + 9 : end])
            begin = end
            self._take(size_and_kind & 0xFF, flags, stream & _MAX_WINDOW_BYTES, payload, at_ns, answers)
        del buffer[:begin]
        self.flush()  # send data that the frames unblocked

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, at_ns: int, answers: list[Answer]) -> None:
        if kind == _DATA:
            self._give_back(len(payload))
            if call := self._calls.get(stream):
                call.body += _without_padding(payload, flags)
        elif kind == _HEADERS:
            if not flags & _END_HEADERS:
                self._fail("the server sent headers in several frames; use --transport grpcio")
                return
            headers = self._decode(_without_padding(payload, flags)[5 if flags & _PRIORITY else 0 :])
            if call := self._calls.get(stream):
                call.headers.update(headers)
        elif kind == _RST_STREAM:
            if call := self._calls.get(stream):
                code = struct.unpack(">I", payload)[0]
                call.headers["reset"] = _RESETS.get(code, "INTERNAL")
                self._finish(stream, call, at_ns, answers)
        elif kind == _SETTINGS and not flags & _ACK:
            self._apply(payload)
        elif kind == _PING and not flags & _ACK:
            self._write(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            self._widen(stream, struct.unpack(">I", payload)[0])
        elif kind == _GOAWAY:
            self._fail("the server is shutting down (GOAWAY)")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM and (call := self._calls.get(stream)):
            self._finish(stream, call, at_ns, answers)

    def _finish(self, stream: int, call: _Call, at_ns: int, answers: list[Answer]) -> None:
        del self._calls[stream]
        del self._streams[call.key]
        self._waiting.pop(stream, None)
        if call.unsent:  # the server responded before it had received everything
            self._write(_RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))
        status = _status(call.headers)
        if status == OK and int.from_bytes(call.body[1:5], "big") != len(call.body) - 5:
            status = "INTERNAL"
        body = bytes(call.body[5:]) if status == OK else call.headers.get("grpc-message", "").encode()
        answers.append(Answer(call.key, at_ns, status, body))

    def _decode(self, block: bytes) -> dict[str, str]:
        """Decode a header block, caching the result. Without a dynamic table, equal blocks decode to equal headers."""
        found = self._blocks.get(block)
        if found is None:
            try:
                found = {str(name): str(value) for name, value in self._decoder.decode(block)}
            except HPACKError as error:
                self._fail(f"the server's headers cannot be read ({error}); use --transport grpcio")
                return {}
            if len(self._blocks) < _KNOWN_BLOCKS:
                self._blocks[block] = found
        return found

    def _apply(self, settings: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", settings):
            if name == _INITIAL_WINDOW:
                for call in self._calls.values():
                    call.window += value - self._initial_window
                self._initial_window = value
            elif name == _MAX_FRAME:
                self._max_frame = value
            elif name == _MAX_STREAMS:
                self.capacity = value
        self._write(_SETTINGS, _ACK, 0, b"")
        self._push_waiting()

    def _widen(self, stream: int, size: int) -> None:
        if stream == 0:
            self._window += size
        elif call := self._calls.get(stream):
            call.window += size
        self._push_waiting()

    def _give_back(self, size: int) -> None:
        self._unreported += size
        if self._unreported > _MAX_WINDOW_BYTES // 2:
            self._write(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unreported))
            self._unreported = 0


def _request_headers(url: str, path: str) -> bytes:
    """Encode the request headers without compression, as literals that are not indexed."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": url,
        "te": "trailers", "content-type": "application/grpc", "user-agent": "rankline-bench",
    }  # fmt: skip
    block = b""
    for name, value in headers.items():
        block += b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
    return block


def _without_padding(payload: bytes, flags: int) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload


def _status(headers: dict[str, str]) -> str:
    if "reset" in headers:
        return headers["reset"]
    code = headers.get("grpc-status", "")
    if code.isdecimal() and int(code) < len(STATUS_NAMES):
        return STATUS_NAMES[int(code)]
    return "UNKNOWN" if headers.get(":status") == "200" else "UNAVAILABLE"  # response of a proxy
