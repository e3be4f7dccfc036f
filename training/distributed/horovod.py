"""Communication between workers through Horovod (Sergeev & Del Balso 2018, arXiv:1802.05799), imported only here.

Tables are exchanged as rows: each worker sends the rows that it used, once each, so the traffic depends on the batch
and not on the table. Everything else is summed in one buffer.
"""

import json
import os
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankline.training.distributed.config import LAG_FACTOR
from rankline.workflows.core.errors import ConfigError, RanklineError, WorkerLostError, WorkersError

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    if getattr(error, "installed_version", None):  # Horovod's own HorovodVersionMismatchError
        raise ConfigError(
            f"Horovod was built for TensorFlow {getattr(error, 'installed_version', '')}, not {tf.__version__}. "
            "Rebuild it: make horovod"
        ) from None
    reason = str(error).splitlines()[0]
    raise ConfigError(
        f"multiple workers require Horovod, which cannot be imported ({reason}). Build it: make horovod"
    ) from None

Array = npt.NDArray[Any]
_MIN_COMPRESSED_VALUES = 1024  # values; for fewer the savings are not worth the rounding
_MAX_HALF_EXPONENT = 15  # 2¹⁵ < 65504
_OF_HOROVOD = ("Horovod", "gloo")  # in messages of Horovod's errors
_MISTAKE = "Mismatched"  # in messages about different tensors, while all workers are alive
_INTERRUPTED = "REPLACED BY KeyboardInterrupt"  # from pybind11, if a signal arrives while an error is raised
_STORE_SCOPE = "rankline"
_STORE_TIMEOUT_S = 2.0
_POSTED_TIMEOUT_S = 5.0  # to wait for another worker's error, or until worker 0 has read this worker's
_POLL_S = 0.05
_GRACE_S = 5.0  # time for worker 0 to print the error and to exit, which ends this worker


class HorovodWorld:
    """The `Communicator` of a process started by horovodrun or mpirun.

    Joins the other workers, unless this process already has.
    """

    def __init__(self, *, compression: str, timeout_s: float) -> None:
        self._compresses, self._has_ended = compression == "fp16", False
        lag_s = round(timeout_s * LAG_FACTOR)
        for name, seconds in (
            ("HOROVOD_GLOO_TIMEOUT_SECONDS", round(timeout_s)),
            ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", lag_s),
            ("HOROVOD_STALL_CHECK_TIME_SECONDS", lag_s // 2),
        ):
            os.environ.setdefault(name, str(seconds))  # Horovod reads them; horovodrun may have set them already
        try:
            hvd.init()
        except ValueError as error:
            raise WorkerLostError(
                f"the workers did not connect to each other within {timeout_s:g} s ({error}). Check their "
                "messages and the network between the hosts, or raise timeout_s."
            ) from None
        if gpus := tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")

    @property
    def rank(self) -> int:
        return int(hvd.rank())

    @property
    def size(self) -> int:
        return int(hvd.size())

    def close(self) -> None:
        """Disconnect from the other workers. Those that are still communicating get a `WorkerLostError`."""
        hvd.shutdown()

    def all_reduce(self, values: Sequence[Any], shapes: Sequence[Sequence[int]], max_rows: int) -> list[Any]:
        totals: list[Any] = list(values)
        dense: dict[int, Any] = {}
        sparse: dict[int, Any] = {}
        touched: dict[int, Any] = {}  # for tables sent as a whole: number of uses of each row
        for position, (value, shape) in enumerate(zip(values, shapes, strict=True)):
            if isinstance(value, tf.IndexedSlices) and shape[0] > max_rows:
                sparse[position] = _each_once(value)
            elif isinstance(value, tf.IndexedSlices):
                ones = tf.ones_like(value.indices, tf.float32)
                dense[position] = tf.math.unsorted_segment_sum(value.values, value.indices, shape[0])
                touched[position] = tf.math.unsorted_segment_sum(ones, value.indices, shape[0])
            else:
                dense[position] = tf.ensure_shape(value, shape)  # some gradients have no static shape
        factors = self._factors(dense | {position: rows.values for position, rows in sparse.items()})
        for position, rows in sparse.items():
            totals[position] = self._gathered_rows(position, rows, factors.get(position), shapes[position])
        exact = {position: value for position, value in dense.items() if position not in factors}
        marks = {(position,): value for position, value in touched.items()}
        sums = _summed({**exact, **marks}, "rankline_sums")
        halves = {
            position: tf.cast(value * factors[position], tf.float16)
            for position, value in dense.items()
            if position in factors
        }
        for position, half in _summed(halves, "rankline_halves").items():
            sums[position] = tf.cast(half, tf.float32) / factors[position]
        for position in dense:
            totals[position] = sums[position]
            if position in touched:
                # Leave out rows that no worker used, or optimizers would move them on old momentum.
                indices = tf.where(sums[position,] > 0)[:, 0]
                totals[position] = _slices(tf.gather(sums[position], indices), indices, shapes[position])
        return totals

    def broadcast(self, variables: Sequence[Any]) -> None:
        with self.translate_errors():
            for position, variable in enumerate(variables):
                # Not by the variables' names: these depend on all models that Keras built before in the process.
                variable.assign(hvd.broadcast(variable.value(), root_rank=0, name=f"rankline_variable_{position}"))

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return [float(total) for total in self.all_gather(np.asarray([numbers], np.float64)).sum(axis=0)]

    def all_gather(self, array: Array) -> Array:
        with self.translate_errors():
            rows: Array = hvd.allgather(tf.convert_to_tensor(array), name="rankline_gathered").numpy()
        return rows

    def all_gather_object(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self.all_gather(np.asarray([len(text)], np.int64))
        texts = np.split(self.all_gather(text), np.cumsum(sizes)[:-1])
        return [json.loads(text.tobytes()) for text in texts]

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            text = str(error)
            if _INTERRUPTED in text:
                raise KeyboardInterrupt from None
            if any(name in text for name in _OF_HOROVOD) and _MISTAKE not in text:
                raise WorkerLostError("another worker exited or stopped responding. See its output.") from error
            raise

    @contextmanager
    def propagating_errors(self) -> Iterator[None]:
        rank = self.rank
        try:
            yield
        except WorkerLostError:
            posted = None if self._has_ended else _wait_for("error")
            self._end(rank)
            if posted is None:
                raise
            raise WorkersError(f"worker {posted['worker']}: {posted['error']}") from None
        except Exception as error:
            if not self._has_ended:
                text = str(error) if isinstance(error, RanklineError) else f"{type(error).__name__}: {error}"
                _post("error", {"worker": rank, "error": text})
            self._end(rank)
            raise

    def _end(self, rank: int) -> None:
        """Disconnect after an error. The other workers then wait until worker 0 has read the error, because horovodrun
        kills all workers when one exits.
        """
        if self._has_ended:
            return
        self._has_ended = True
        self.close()
        if rank == 0:
            _post("error_read", {})
        elif _wait_for("error_read") is not None:
            time.sleep(_GRACE_S)

    def _factors(self, values: dict[int, Any]) -> dict[int, Any]:
        """Return scale factors for values to send as float16, keyed by position. Values sent as float32 have no entry.

        Factors are powers of two, the same on all workers, for which the largest possible sum still fits into float16.
        Non-finite values stay non-finite.
        """
        positions = [position for position, value in values.items() if _has_at_least(value, _MIN_COMPRESSED_VALUES)]
        if not self._compresses or not positions:
            return {}
        largest = [tf.maximum(tf.reduce_max(tf.abs(values[position])), 0.0) for position in positions]  # 0 if empty
        limits = hvd.allreduce(tf.stack(largest), op=hvd.Sum, name="rankline_limits")
        exponents = tf.math.floor(_MAX_HALF_EXPONENT - tf.math.log(limits) / np.log(2.0))
        factors = tf.pow(2.0, tf.clip_by_value(exponents, -100.0, 100.0))
        return dict(zip(positions, tf.unstack(factors), strict=True))

    def _gathered_rows(self, position: int, rows: Any, factor: Any, shape: Sequence[int]) -> Any:
        narrow = tf.int32 if shape[0] < 2**31 else tf.int64
        indices = hvd.allgather(tf.cast(rows.indices, narrow), name=f"rankline_indices_{position}")
        sent = rows.values if factor is None else tf.cast(rows.values * factor, tf.float16)
        values = hvd.allgather(sent, name=f"rankline_values_{position}")
        if factor is not None:
            values = tf.cast(values, tf.float32) / factor
        return _slices(values, tf.cast(indices, rows.indices.dtype), shape)


def _each_once(rows: Any) -> Any:
    """Sum the gradient rows that share an index, so that each index occurs once."""
    indices, places = tf.unique(rows.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(rows.values, places, tf.size(indices)), indices)


def _slices(values: Any, indices: Any, shape: Sequence[int]) -> Any:
    return tf.IndexedSlices(values, indices, tf.constant(shape, tf.int64))


def _has_at_least(value: Any, num_numbers: int) -> bool:
    """Whether a tensor has at least `num_numbers` elements, or an unknown number of elements."""
    size = value.shape.num_elements()
    return size is None or size >= num_numbers


def _summed(values: dict[Any, Any], name: str) -> dict[Any, Any]:
    """Return the sum of each value over all workers, computed in a single all-reduce."""
    if not values:
        return {}
    buffer = tf.concat([tf.reshape(value, [-1]) for value in values.values()], axis=0)
    sums = tf.split(
        hvd.allreduce(buffer, op=hvd.Sum, name=name), [value.shape.num_elements() for value in values.values()]
    )
    return {key: tf.reshape(total, value.shape) for (key, value), total in zip(values.items(), sums, strict=True)}


def _store() -> str | None:
    """Return the URL of horovodrun's key-value store, or None if MPI started the workers."""
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{part}") for part in ("ADDR", "PORT"))
    return f"http://{address}:{port}/{_STORE_SCOPE}" if address and port else None


def _post(key: str, value: Any) -> None:
    if store := _store():
        request = urllib.request.Request(f"{store}/{key}", data=json.dumps(value).encode(), method="PUT")
        with suppress(OSError), urllib.request.urlopen(request, timeout=_STORE_TIMEOUT_S):
            pass


def _wait_for(key: str) -> Any:
    """Return the value that a worker posts under `key`, or None if no value arrives within `_POSTED_TIMEOUT_S`."""
    deadline_s = time.monotonic() + _POSTED_TIMEOUT_S
    while (store := _store()) and time.monotonic() < deadline_s:
        with suppress(OSError), urllib.request.urlopen(f"{store}/{key}", timeout=_STORE_TIMEOUT_S) as answer:
            return json.load(answer)
        time.sleep(_POLL_S)
    return None
