"""Serve one exported ensemble for as long as the process lives: what the container runs.

    python -m serving --repository model_repository/movielens --host 0.0.0.0 --watch

It needs no TensorFlow, NVTabular or MLflow in this process. `rankline serve` is the same for people at a terminal.
"""

import argparse
import signal
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path

from serving.ensemble import ExportedEnsemble
from serving.server import EmbeddedServer, ServerConfig, Tls
from serving.supervise import Supervisor, config_of
from workflows.errors import ConfigError, RanklineError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Parse, serve, stop on SIGTERM or SIGINT; the exit status."""
    options = _parser().parse_args()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))  # leaves through the `with` below, so that the server stops
    try:
        _serve(options)
    except RanklineError as error:
        _report(f"error: {error}")
        return 1
    return 0


def _serve(options: argparse.Namespace) -> None:
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise ConfigError("a certificate needs its key: give both --tls-certificate and --tls-key, or neither.")
    if options.tls_client_root and not options.tls_certificate:
        raise ConfigError("--tls-client-root requires encryption: give --tls-certificate and --tls-key, too.")
    tls = None
    if options.tls_certificate:
        tls = Tls(certificate=options.tls_certificate, key=options.tls_key, client_root=options.tls_client_root)
    ensemble = ExportedEnsemble.load(options.repository)
    if options.watch and options.expect_fingerprint:
        raise ConfigError("--expect-fingerprint names one version, and --watch takes others. Leave out one of the two.")
    ensemble.check_fingerprint(options.expect_fingerprint)
    config = config_of(
        ensemble,
        host=options.host,
        grpc_port=options.grpc_port,
        http_port=options.http_port,
        metrics_port=options.metrics_port,
        tls=tls,
        log_path=options.log_file,
        echo_log=True,
        max_connection_age_s=options.max_connection_age_s,
        ready_timeout_s=options.ready_timeout_s,
    )
    if not config.is_local and tls is None:
        _report(
            f"WARNING: gRPC on {config.host} is not encrypted. Whoever reaches it can ask for scores and read others'."
        )
    stop = threading.Event()
    with EmbeddedServer(config) as server:
        for number in _SIGNALS:
            signal.signal(number, lambda *_: stop.set())
        _report(f"{ensemble.name} version {ensemble.version}: gRPC {server.endpoints.grpc}, {server.endpoints.metrics}")
        Supervisor(server, ensemble, follow_versions=options.watch, report=_report).run(stop)
    _report("stopped")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving", description="Serve one exported ensemble with Triton.")
    parser.add_argument(
        "--repository", type=Path, required=True, help="the ensemble, such as model_repository/movielens"
    )
    parser.add_argument("--watch", action="store_true", help="switch to new versions")
    parser.add_argument(
        "--expect-fingerprint", metavar="SHA256", help="refuse any other version; not with --watch (see manifest.json)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address of gRPC and metrics (default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=8001, help="default: %(default)s; 0 takes a free one")
    parser.add_argument("--http-port", type=int, default=8000, help="on loopback only (default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, default=8002, help="default: %(default)s")
    parser.add_argument("--tls-certificate", type=Path, help="PEM file that encrypts gRPC, with --tls-key")
    parser.add_argument("--tls-key", type=Path, help="PEM file")
    parser.add_argument("--tls-client-root", type=Path, help="ask clients for a certificate that this one signed")
    parser.add_argument("--log-file", type=Path, help="keep tritonserver's log here, not in ours")
    parser.add_argument(
        "--max-connection-age-s",
        type=float,
        default=0.0,
        help="make clients reconnect after this long, so that they can be sent elsewhere; default: never",
    )
    parser.add_argument(
        "--ready-timeout-s", type=float, default=ServerConfig.ready_timeout_s, help="default: %(default)s"
    )
    return parser


def _report(line: str) -> None:
    print(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
