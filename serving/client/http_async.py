"""Triton's HTTP protocol for asyncio, through tritonclient."""

import asyncio
import ssl
from typing import Any

import aiohttp
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from rankline.serving.client.config import ClientConfig, ClientTls
from rankline.serving.client.errors import DEADLINE_EXCEEDED, NOT_TRITON, UNAVAILABLE, CallError
from rankline.serving.client.http import HttpTransport, failed
from rankline.workflows.core.errors import in_short


class AsyncHttpTransport(HttpTransport):
    """Implements `Transport` with connections in the running event loop."""

    def __init__(self, url: str, config: ClientConfig) -> None:
        super().__init__(config)
        tls = config.tls
        self._client = triton.InferenceServerClient(
            url,
            conn_timeout=None,
            ssl=tls is not None,
            ssl_context=None if tls is None else _ssl_context(tls),
        )

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        try:
            call = getattr(self._client, method)(*arguments, headers=self._headers)
            return await asyncio.wait_for(call, timeout_s)
        except InferenceServerException as error:
            raise failed(error) from error
        except asyncio.TimeoutError as error:  # not yet TimeoutError on Python 3.10
            raise CallError(DEADLINE_EXCEEDED, str(error)) from error
        except ValueError as error:  # invalid JSON or UTF-8
            raise CallError(NOT_TRITON, f"status 200, {in_short(error)}") from error
        except (OSError, aiohttp.ClientError) as error:
            raise CallError(UNAVAILABLE, str(error)) from error


def _ssl_context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.root)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
