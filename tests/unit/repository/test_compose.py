"""What the files of the container stack say: the properties that make it safe to run, one by one."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.harness.containers.deployment import (
    CONTAINER,
    ROOT,
    VARIABLE,
    allowed_files,
    compose,
    needed_files,
    schema_faults,
)

FILES = ("docker-compose.yml", "docker-compose.tls.yml")
GIVEN = {
    "POSTGRES_PASSWORD": "-", "GRAFANA_PASSWORD": "-", "RANKLINE_TLS_ADDRESS": "192.0.2.1",
    "RANKLINE_TLS_CERTIFICATE": "certificate.pem", "RANKLINE_TLS_KEY": "key.pem",
}  # fmt: skip
STACK = compose(**GIVEN)
SERVICES = STACK["services"]
LASTING = sorted(SERVICES.keys() - {"bench"})
TLS = compose("docker-compose.tls.yml", **GIVEN)


def variables(file: str) -> list[tuple[str, str]]:
    """Variables, and what the file says for when they are not given."""
    found = VARIABLE.findall((ROOT / file).read_text(encoding="utf-8"))
    return [(name, kind + text) for name, kind, text in found]


# The format


@pytest.mark.parametrize("name", FILES)
def test_file_follows_the_compose_specification(name: str) -> None:
    assert schema_faults("vendor.compose-spec", ROOT / name) == ""


def test_unknown_key_of_a_service_is_found(tmp_path: Path) -> None:
    (tmp_path / "broken.yml").write_text("services: {triton: {image: x, memory: 4g}}", encoding="utf-8")
    assert "memory" in schema_faults("vendor.compose-spec", tmp_path / "broken.yml")


@pytest.mark.parametrize("files", [FILES[:1], FILES])
def test_docker_compose_accepts_them(files: tuple[str, ...], tmp_path: Path) -> None:
    version = ["docker", "compose", "version"]
    if shutil.which("docker") is None or subprocess.run(version, capture_output=True, check=False).returncode:
        pytest.skip("no `docker compose`: install Docker's compose plugin; no engine is needed")
    environment = tmp_path / "env"
    environment.write_text("".join(f"{name}={value}\n" for name, value in GIVEN.items()), encoding="utf-8")
    chosen = [part for file in files for part in ("--file", str(ROOT / file))]
    command = ["docker", "compose", "--env-file", str(environment), *chosen, "--profile", "*", "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compose_variables_have_one_default_and_are_documented() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^#?(\w+)=(.*)$", example, re.MULTILINE))
    found = {pair for file in FILES for pair in variables(file)}
    assert len(dict(found)) == len(found)
    assert documented == {name: "" if value.startswith("?") else value[1:] for name, value in found}


# What a service may do


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert str(service["user"]).partition(":")[0] not in ("root", "0")
    assert service["pids_limit"] > 0
    assert not service.keys() & {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "env_file"}
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_limits(name: str) -> None:
    memory = yaml.safe_load((ROOT / FILES[0]).read_text())["services"][name]["mem_limit"]
    assert re.fullmatch(rf"\$\{{RANKLINE_{name.upper()}_MEMORY:-\d+[mg]\}}", memory)
    assert SERVICES[name]["logging"] == {"driver": "local"}
    assert all("nosuid,nodev,noexec" in entry for entry in SERVICES[name].get("tmpfs", ()))


@pytest.mark.parametrize("name", LASTING)
def test_lasting_service_reports_its_health_and_restarts(name: str) -> None:
    assert name == "triton" or SERVICES[name]["healthcheck"]["test"][0] == "CMD"  # the image's: HEALTHCHECK
    assert SERVICES[name]["restart"] == "always"


def test_host_mounts_are_read_only_and_must_exist() -> None:
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", ()) if "type" in volume]
    assert mounts
    for mount in mounts:
        assert (mount["type"], mount["read_only"], mount["bind"]["create_host_path"]) == ("bind", True, False)
        if mount["target"] != "/work":  # made by `rankline prepare`
            assert (ROOT / mount["source"]).exists()


# What can be reached


def test_ports_are_published_on_loopback_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"triton", "mlflow", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_database_is_reachable_from_mlflow_only() -> None:
    assert [name for name, service in SERVICES.items() if "database" in service["networks"]] == ["postgres", "mlflow"]
    assert STACK["networks"]["database"] == {"internal": True}


@pytest.mark.parametrize("missing", GIVEN)
def test_required_variable_has_no_default(missing: str) -> None:
    name = FILES["TLS" in missing]
    with pytest.raises(KeyError, match=missing):
        compose(name, **{variable: value for variable, value in GIVEN.items() if variable != missing})


def test_secrets_come_from_the_environment_alone() -> None:
    for file in FILES:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        for line in filter(re.compile(r"password\w*:", re.IGNORECASE).search, lines):
            assert re.search(r": \$\{(POSTGRES|GRAFANA)_PASSWORD:\?", line), line
    commands = json.dumps([service.get("command", ()) for service in SERVICES.values()])
    assert "postgresql+psycopg2://mlflow@postgres:5432/mlflow" in commands  # no password in it
    assert "PASSWORD" not in commands


# Images


def test_images_are_pinned() -> None:
    dockerfile = (CONTAINER / "Dockerfile").read_text(encoding="utf-8")
    bases = dict(re.findall(r"^ARG (\w+_IMAGE)=(.+)", dockerfile, re.MULTILINE))
    pulled = [service["image"] for service in SERVICES.values() if not service["image"].startswith("rankline-")]
    for image in (*bases.values(), *pulled):
        assert re.search(r":v?\d+\.\d+", image), image
    release = re.fullmatch(r"nvcr\.io/nvidia/tritonserver:(\d+)\.(\d+)-py3", bases["TRITON_IMAGE"])
    assert release
    assert tuple(map(int, release.groups())) > (26, 5)  # the month of the bulletin on CVE-2026-24206 to -24209
    assert bases["PYTHON_IMAGE"].startswith("python:3.13.")


def test_context_has_what_is_copied_and_imported_and_no_more() -> None:
    files, _ = needed_files()
    assert allowed_files() == files, "renew it: python -m tests.harness.containers.deployment"
    dockerfile = (CONTAINER / "Dockerfile").read_text(encoding="utf-8")
    for source in re.findall(r"^COPY (?!--from)(\S+)", dockerfile, re.MULTILINE):
        assert source in allowed_files() or any(name.startswith(f"{source}/") for name in allowed_files())


DISTRIBUTIONS = {
    "google": "protobuf", "grpc": "grpcio", "hdrh": "hdrhistogram", "yaml": "pyyaml",
    "gevent": "tritonclient",  # of its extra http: the image's client uses gRPC, so it never imports that module
}  # fmt: skip


def pinned_in(name: str) -> dict[str, str]:
    """Package → release; each has the hashes of its files behind it."""
    text = (CONTAINER / "requirements" / name).read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\S", text, re.MULTILINE))
    return {package: release for package, release, _ in entries}


def test_images_install_hashed_packages_only_and_pin_what_they_import() -> None:
    installs = re.findall(r"pip install [^\n&]*", (CONTAINER / "Dockerfile").read_text(encoding="utf-8"))
    assert installs
    assert all("--require-hashes" in line for line in installs)
    needed = {DISTRIBUTIONS.get(name, name) for name in needed_files()[1]}
    pinned = pinned_in("requirements-bench.txt")
    assert needed <= set(pinned), (
        "add it to serving/deploy/requirements/requirements-bench.in and run serving/deploy/requirements/lock.sh"
    )


@pytest.mark.parametrize("name", [f"requirements-{name}.txt" for name in ("bench", "engines", "mlflow")])
def test_images_take_the_versions_of_the_lock(name: str) -> None:
    """What the lock lacks is the images' own."""
    locked: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        package, _, release = line.split()[0].partition("==")
        locked.setdefault(package, set()).add(release)
    pinned = pinned_in(name)
    differing = {package for package, release in pinned.items() if release not in locked.get(package, {release})}
    assert not differing, "renew them: serving/deploy/requirements/lock.sh"
    assert len(pinned.keys() & locked.keys()) > len(pinned) / 2
