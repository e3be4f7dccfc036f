"""The client: rows in, scores out. Names and types come from the server's description of the model.

    with Client("127.0.0.1:8001", "movielens") as client:
        scores = client.predict({"userId": [1, 2], "movieId": [31, None]})

    async with AsyncClient("127.0.0.1:8001", "movielens", ClientConfig(timeout_s=0.1)) as client:
        scores = await client.predict(rows)

Rows are a mapping from names to columns, one row or a list of rows as mappings from names to values, a table of pandas,
polars or Arrow. Lists may differ in length. None, NaN and Arrow's null say that a value is missing; see
`rankline.workflows.schema.tensor_names` for how that travels.

A model whose rows may hold several candidates scores many of them for one row in one request:

    scores = client.rank({"user_id": "A2IBPI20UZIR0U", "history": ["B0006AAS7E"]}, candidates)

    schema      what a model takes and gives
    tensors     a column → the tensors of an input
    requests    rows → checked, cut to what the server takes, laid out for the wire
    config      timeouts, retries, encryption, transport
    transport   the wire, in coroutines: `grpc`, or `http`
    failures    what the server said → an exception
    core        what both clients do
    sync, aio   `Client` and `AsyncClient`, its two faces
"""

from rankline.serving.client.aio import AsyncClient
from rankline.serving.client.config import ClientConfig, ClientTls
from rankline.serving.client.request_builder import PreparedRequest
from rankline.serving.client.schema import ColumnSchema, ModelSchema
from rankline.serving.client.sync import Client

__all__ = ["AsyncClient", "Client", "ClientConfig", "ClientTls", "ColumnSchema", "ModelSchema", "PreparedRequest"]
