"""The scorer behind `grpc.aio`, with Triton's messages: `python -m bench.peers.servers.grpc_server --port PORT`."""

import argparse
import asyncio

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bench.peers.servers.scorer import Scorer


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self) -> None:
        self._scorer = Scorer()

    async def ModelInfer(  # noqa: N802  (gRPC's name)
        self,
        request: service_pb2.ModelInferRequest,
        context: grpc.aio.ServicerContext,  # noqa: ARG002  (gRPC's signature)
    ) -> service_pb2.ModelInferResponse:
        columns = {
            tensor.name: np.frombuffer(content, np.int64).tolist()
            for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        response = service_pb2.ModelInferResponse()
        response.raw_output_contents.append(self._scorer.score(columns).tobytes())
        return response


async def serve(port: int) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))
