"""Client for models served by Triton. It reads the column names and types from the server.

    with Client("127.0.0.1:8001", "movielens") as client:
        scores = client.predict({"userId": [1, 2], "movieId": [31, None]})

    async with AsyncClient("127.0.0.1:8001", "movielens", ClientConfig(timeout_s=0.1)) as client:
        scores = await client.predict(rows)

Rows are a mapping from names to columns, a single row or a list of rows as mappings from names to values, or a pandas,
polars or Arrow table. Lists may differ in length. None, NaN and Arrow's null mark missing values; see
`rankline.workflows.schema.tensor_names` for their encoding.

A model that takes several candidates per row scores many candidates for one row in one request:

    scores = client.rank({"user_id": "A2IBPI20UZIR0U", "history": ["B0006AAS7E"]}, candidates)

Modules:

    schema             inputs and outputs of a model
    encoding           conversion of columns to input tensors
    request_builder    rows → messages: checked, split to the server's limits and encoded
    config             timeouts, retries, encryption, transport
    errors             conversion of failed calls to exceptions
    core               the shared part of both clients, and the interface of the transports `grpc` and `http`
    sync, aio          `Client` and `AsyncClient`
"""

from rankline.serving.client.aio import AsyncClient
from rankline.serving.client.config import ClientConfig, ClientTls
from rankline.serving.client.request_builder import PreparedRequest
from rankline.serving.client.schema import ColumnSchema, ModelSchema
from rankline.serving.client.sync import Client

__all__ = ["AsyncClient", "Client", "ClientConfig", "ClientTls", "ColumnSchema", "ModelSchema", "PreparedRequest"]
