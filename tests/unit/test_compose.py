"""What the files of the container stack say: the properties that make it safe to run, one by one."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployment import (
    CONTAINER,
    ROOT,
    VARIABLE,
    allowed_files,
    compose,
    dockerfile_stage,
    needed_files,
    overridden,
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


@pytest.mark.parametrize("name", [*FILES, "a service with an unknown key"])
def test_the_files_follow_the_compose_specification(name: str, tmp_path: Path) -> None:
    if find_spec("check_jsonschema") is None:
        pytest.skip("the schema comes with check-jsonschema: pip install check-jsonschema")
    file = ROOT / name
    if name not in FILES:
        file = tmp_path / "broken.yml"
        file.write_text("services: {triton: {image: x, memory: 4g}}", encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (name in FILES), done.stdout


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


def test_every_variable_is_documented_with_the_default_that_is_used() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^#?(\w+)=(.*)$", example, re.MULTILINE))
    used = dict(pair for file in FILES for pair in variables(file))
    assert documented == {name: "" if value.startswith("?") else value[1:] for name, value in used.items()}


def test_no_variable_has_two_defaults() -> None:
    found = {pair for file in FILES for pair in variables(file)}
    assert len(dict(found)) == len(found)


# What a service may do


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert str(service["user"]).partition(":")[0] not in ("root", "0")
    assert service["pids_limit"] > 0
    assert not service.keys() & {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "env_file"}
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_limits(name: str) -> None:
    memory = yaml.safe_load((ROOT / FILES[0]).read_text())["services"][name]["mem_limit"]
    assert re.fullmatch(rf"\$\{{RANKLINE_{name.upper()}_MEMORY:-\d+[mg]\}}", memory)
    assert SERVICES[name]["logging"] == {"driver": "local"}


@pytest.mark.parametrize("name", LASTING)
def test_a_lasting_service_tells_its_health_and_comes_back(name: str) -> None:
    assert name == "triton" or SERVICES[name]["healthcheck"]["test"][0] == "CMD"  # the image's: HEALTHCHECK
    assert SERVICES[name]["restart"] == "always"


def test_only_its_tmp_and_its_volumes_can_be_written() -> None:
    writable = {
        name: sorted(
            [volume for volume in service.get("volumes", ()) if isinstance(volume, str)]
            + [entry.split(":")[0] for entry in service.get("tmpfs", ())]
        )
        for name, service in SERVICES.items()
    }
    assert writable == {
        "triton": ["serving:/var/lib/rankline"],
        "bench": ["/tmp"],
        "postgres": ["/tmp", "/var/run/postgresql", "postgres:/var/lib/postgresql"],
        "mlflow": ["/tmp", "artifacts:/artifacts"],
        "prometheus": ["metrics:/prometheus"],
        "grafana": ["/tmp", "grafana:/var/lib/grafana"],
    }
    assert {volume.split(":")[0] for volumes in writable.values() for volume in volumes if ":" in volume} == set(
        STACK["volumes"]
    )


def test_no_program_can_be_run_from_a_tmpfs() -> None:
    mounts = [entry for service in SERVICES.values() for entry in service.get("tmpfs", ())]
    assert mounts
    assert all("nosuid,nodev,noexec" in entry for entry in mounts)


def test_what_is_mounted_from_this_machine_is_read_only_and_must_be_there() -> None:
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", ()) if "type" in volume]
    assert len(mounts) == 5
    for mount in mounts:
        assert (mount["type"], mount["read_only"], mount["bind"]["create_host_path"]) == ("bind", True, False)
        if mount["target"] != "/work":  # made by `rankline prepare`
            assert (ROOT / mount["source"]).exists()


# What can be reached


def test_nothing_is_published_but_three_ports_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "triton": ["127.0.0.1:8001:8001"],
        "mlflow": ["127.0.0.1:5000:5000"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_networks_join_only_who_must_talk() -> None:
    members: dict[str, list[str]] = {}
    for name, service in SERVICES.items():
        for network in service["networks"]:
            members.setdefault(network, []).append(name)
    assert members == {
        "serving": ["triton", "bench", "prometheus"],
        "database": ["postgres", "mlflow"],
        "tracking": ["mlflow"],
        "monitoring": ["prometheus", "grafana"],
    }
    assert [name for name, network in STACK["networks"].items() if network] == ["database"]
    assert STACK["networks"]["database"] == {"internal": True}


def test_the_override_adds_encryption_and_one_port_and_changes_nothing_else() -> None:
    assert TLS.keys() == {"services", "secrets"}
    assert TLS["services"].keys() == {"triton"}
    base, changed = SERVICES["triton"], overridden(SERVICES["triton"], TLS["services"]["triton"])
    assert {name for name in changed if changed[name] != base.get(name)} == {"command", "ports", "secrets"}
    files = ["--grpc-server-cert=/run/secrets/tls_certificate", "--grpc-server-key=/run/secrets/tls_key"]
    assert changed["command"] == [*base["command"], "--grpc-use-ssl=true", *files]
    assert changed["ports"] == [*base["ports"], "192.0.2.1:8443:8001"]
    assert TLS["secrets"] == {"tls_certificate": {"file": "certificate.pem"}, "tls_key": {"file": "key.pem"}}


@pytest.mark.parametrize("missing", GIVEN)
def test_what_must_be_given_has_no_default(missing: str) -> None:
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


# Order


def test_a_service_starts_when_what_it_needs_is_healthy() -> None:
    """Prometheus waits for nobody: it is to see a Triton that does not start."""
    order = {name: service["depends_on"] for name, service in SERVICES.items() if "depends_on" in service}
    healthy = {"condition": "service_healthy"}
    assert order == {
        "bench": {"triton": healthy},
        "mlflow": {"postgres": healthy},
        "grafana": {"prometheus": healthy},
    }
    checked = {name for name, service in SERVICES.items() if "healthcheck" in service} | {"triton"}
    assert checked >= {needed for needs in order.values() for needed in needs}
    assert "HEALTHCHECK" in dockerfile_stage("triton")["text"]


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


@pytest.mark.parametrize("name", ["triton", "bench", "mlflow"])
def test_an_image_is_built_to_run_as_the_user_of_its_service(name: str) -> None:
    build = {key: value for key, value in SERVICES[name]["build"].items() if key != "args"}
    assert build == {"context": ".", "dockerfile": "serving/container/Dockerfile", "target": name}
    assert dockerfile_stage(name)["USER"] == SERVICES[name]["user"]


def test_the_context_has_what_is_copied_and_imported_and_no_more() -> None:
    files, _ = needed_files()
    assert allowed_files() == files, "renew it: python -m tests.support.deployment"
    dockerfile = (CONTAINER / "Dockerfile").read_text(encoding="utf-8")
    for source in re.findall(r"^COPY (?!--from)(\S+)", dockerfile, re.MULTILINE):
        assert source in allowed_files() or any(name.startswith(f"{source}/") for name in allowed_files())


DISTRIBUTIONS = {
    "google": "protobuf", "grpc": "grpcio", "hdrh": "hdrhistogram", "yaml": "pyyaml",
    "gevent": "tritonclient",  # of its extra http: the image's client uses gRPC, so it never imports that module
}  # fmt: skip


def pinned_in(name: str) -> dict[str, str]:
    """Package → release; each has the hashes of its files behind it."""
    text = (CONTAINER / name).read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\S", text, re.MULTILINE))
    return {package: release for package, release, _ in entries}


def test_images_install_what_was_hashed_alone() -> None:
    installs = re.findall(r"pip install [^\n&]*", (CONTAINER / "Dockerfile").read_text(encoding="utf-8"))
    assert len(installs) == 3
    assert all("--require-hashes" in line for line in installs)


def test_what_the_image_imports_is_pinned() -> None:
    _, modules = needed_files()
    needed = {DISTRIBUTIONS.get(name, name) for name in modules}
    pinned = pinned_in("requirements-bench.txt")
    assert needed <= set(pinned), "add it to serving/container/requirements-bench.in and run serving/container/lock.sh"


@pytest.mark.parametrize("name", [f"requirements-{name}.txt" for name in ("bench", "engines", "mlflow")])
def test_images_take_the_versions_of_the_lock(name: str) -> None:
    """What the lock lacks is the images' own."""
    locked: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        package, _, release = line.split()[0].partition("==")
        locked.setdefault(package, set()).add(release)
    pinned = pinned_in(name)
    differing = {package for package, release in pinned.items() if release not in locked.get(package, {release})}
    assert not differing, "renew them: serving/container/lock.sh"
    assert len(pinned.keys() & locked.keys()) > len(pinned) / 2


# Prometheus and Grafana


def load(name: str) -> Any:
    return yaml.safe_load((CONTAINER / name).read_text(encoding="utf-8"))


def test_prometheus_asks_triton_where_its_metrics_are() -> None:
    target = load("prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == ["triton:8002"]  # Triton's own default
    assert "serving" in SERVICES["prometheus"]["networks"]


def test_grafana_finds_data_and_dashboard() -> None:
    source = load("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    provider = load("grafana/provisioning/dashboards/serving.yml")["providers"][0]
    mounts = {volume["target"]: volume["source"] for volume in SERVICES["grafana"]["volumes"] if "type" in volume}
    assert mounts["/etc/grafana/provisioning"] == "./serving/container/grafana/provisioning"
    assert (ROOT / mounts[provider["options"]["path"]] / "serving.json").is_file()
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/serving.json"
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == load("prometheus.yml")["global"]["scrape_interval"]


def test_the_dashboard_is_sound() -> None:
    dashboard = json.loads((CONTAINER / "grafana/dashboards/serving.json").read_text(encoding="utf-8"))
    source = load("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    reference = {"type": source["type"], "uid": source["uid"]}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["datasource"] == reference
        assert all(target["datasource"] == reference for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["model"]
    assert dashboard["templating"]["list"][0]["datasource"] == reference


@pytest.mark.parametrize(
    "metric",
    [
        "nv_inference_request_success",
        "nv_inference_request_failure",
        "nv_inference_queue_duration_us",
        "nv_inference_request_duration_us",
        "nv_inference_count",
        "nv_inference_pending_request_count",
    ],
)
def test_the_dashboard_shows(metric: str) -> None:
    dashboard = json.loads((CONTAINER / "grafana/dashboards/serving.json").read_text(encoding="utf-8"))
    shown = [panel["title"] for panel in dashboard["panels"] if metric in json.dumps(panel["targets"])]
    assert any("by model" in title for title in shown)
