"""Triton's protocol over HTTP for asyncio, through tritonclient."""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import aiohttp
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from serving.client import http
from serving.client.config import ClientConfig, ClientTls
from serving.client.failures import DEADLINE_EXCEEDED, UNAVAILABLE, CallError
from serving.client.schema import ModelSchema, TensorSchema
from serving.client.tensors import Array, WireTensor


class AsyncHttpTransport:
    """Implements `AsyncTransport`."""

    def __init__(self, url: str, config: ClientConfig) -> None:
        self._config = config
        tls = config.tls
        self._client = triton.InferenceServerClient(
            http.address_of(url, config),
            conn_timeout=config.timeout_s,
            ssl=tls is not None,
            ssl_context=None if tls is None else _ssl_context(tls),
        )

    async def describe(self, model_name: str) -> Any:
        """The model's `inference.ModelConfig`."""
        return http.model_config(await self._call("get_model_config", model_name))

    async def model_names(self) -> list[str]:
        """Models that are ready."""
        return http.ready_models(await self._call("get_model_repository_index"))

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """The arguments of tritonclient's `infer`."""
        return http.encode(schema, tensors)

    async def infer(self, message: Any) -> Any:
        """Send a message."""
        return await self._call("infer", *message)

    def decode(self, response: Any, tensor: TensorSchema) -> Array:
        """The output, [num_rows, ...]."""
        return http.decode(response, tensor)

    async def close(self) -> None:
        """End the connection."""
        await self._client.close()

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._client, method)(*arguments, headers=http.headers_of(self._config))
        except InferenceServerException as error:
            raise http.failed(error) from error
        except asyncio.TimeoutError as error:  # not yet TimeoutError on Python 3.10
            raise CallError(DEADLINE_EXCEEDED, str(error)) from error
        except (OSError, aiohttp.ClientError) as error:
            raise CallError(UNAVAILABLE, str(error)) from error


def _ssl_context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.root)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
