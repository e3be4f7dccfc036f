"""What the Kubernetes manifests say: rendered by kubectl, held against Kubernetes' schemas and the container stack."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.containers.deployment import CONTAINER, compose, dockerfile_stage

KUBERNETES = CONTAINER / "kubernetes"
Objects = dict[tuple[str, str], dict[str, Any]]
"""Kind and name → object."""
VERSIONS = ("1.30", "1.33")  # preStop's sleep needs the first
COMPOSED = compose(POSTGRES_PASSWORD="-", GRAFANA_PASSWORD="-")["services"]["triton"]


def render(name: str) -> Objects:
    """Skips the test without kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl was not found, which renders the manifests: https://kubernetes.io/docs/tasks/tools")
    command = ["kubectl", "kustomize", str(KUBERNETES / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(made["kind"], made["metadata"]["name"]): made for made in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module")
def objects() -> Objects:
    return render("base")


@pytest.fixture(scope="module")
def pod(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment", "triton"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


# The format


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["base", "ingress", "baked"])
def test_manifests_follow_the_schemas_of_kubernetes(name: str, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    made = render(name)
    for definition in made.values():
        validator.validate(definition, version, strict=True)
    broken = made["Deployment", "triton"]
    broken["spec"]["template"]["spec"]["containers"][0]["livenes"] = {}
    with pytest.raises(validator.ValidationError, match="livenes"):
        validator.validate(broken, version, strict=True)


def test_ingress_adds_and_changes_nothing(objects: Objects) -> None:
    opened = render("ingress")
    assert {key: opened[key] for key in objects} == objects
    assert opened.keys() - objects.keys() == {("Ingress", "triton"), ("NetworkPolicy", "triton-ingress")}
    (path,) = opened["Ingress", "triton"]["spec"]["rules"][0]["http"]["paths"]
    service = objects["Service", path["backend"]["service"]["name"]]
    assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


def test_kserve_runs_what_the_base_runs(objects: Objects, container: dict[str, Any], pod: dict[str, Any]) -> None:
    """Its own kinds are not checked here: their schemas (2 MB) are in no package that could be installed for it."""
    made = render("kserve")
    (ours,) = made["ServingRuntime", "rankline"]["spec"]["containers"]
    same = {"image", "startupProbe", "readinessProbe", "resources"}
    assert {key: ours[key] for key in same} == {key: container[key] for key in same}
    of_the_pod = {key: value for key, value in pod["securityContext"].items() if not key.startswith("fsGroup")}
    assert ours["securityContext"] == {**of_the_pod, **container["securityContext"]}
    assert ours["args"] == ["/mnt/models", *container["args"][1:]]
    assert ours["ports"][0]["containerPort"] == container["ports"][0]["containerPort"]
    runtime, model = (
        made["ServingRuntime", "rankline"]["spec"],
        made["InferenceService", "movielens"]["spec"]["predictor"]["model"],
    )
    assert model["modelFormat"]["name"] in [known["name"] for known in runtime["supportedModelFormats"]]
    assert (model["runtime"], [model["protocolVersion"]]) == ("rankline", runtime["protocolVersions"])
    claim = objects["PersistentVolumeClaim", "model-repository"]["metadata"]["name"]
    assert model["storageUri"] == f"pvc://{claim}/{container['args'][0].rpartition('/')[2]}"
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"}, "spec": {"containers": [ours]}}
    validator.validate(alone, VERSIONS[-1], strict=True)


# As the container stack


def test_server_is_that_of_the_container_stack(container: dict[str, Any], pod: dict[str, Any]) -> None:
    assert container["image"].partition(":")[0] == COMPOSED["image"]
    added = [argument for argument in container["args"] if argument not in COMPOSED["command"]]
    ages = ["--grpc-max-connection-age", "--grpc-max-connection-age-grace"]
    assert [argument.partition("=")[0] for argument in added] == ages
    assert set(COMPOSED["command"]) <= set(container["args"])
    user = dockerfile_stage("triton")["USER"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user == COMPOSED["user"]
    assert container["resources"]["limits"]["memory"] == COMPOSED["mem_limit"].replace("g", "Gi")


def test_pod_has_no_rights_that_it_does_not_need(
    objects: Objects, container: dict[str, Any], pod: dict[str, Any]
) -> None:
    labels = objects["Namespace", "rankline"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {made["metadata"].get("namespace", "rankline") for made in objects.values()} == {"rankline"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert next(mount["readOnly"] for mount in container["volumeMounts"] if mount["mountPath"] == "/models") is True


# Many of them


def test_update_never_has_fewer_that_answer(objects: Objects) -> None:
    deployment = objects["Deployment", "triton"]["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "replicas" not in deployment  # else each `apply` would undo what the autoscaler did


def test_clients_have_left_before_a_replica_ends(container: dict[str, Any], pod: dict[str, Any]) -> None:
    (age,) = [part for part in container["args"] if part.startswith("--grpc-max-connection-age=")]
    age_s, drain_s = float(age.partition("=")[2]) / 1_000, container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grpc_asks_dns_again_s, triton_stops_s = 30, 30
    assert drain_s >= age_s + grpc_asks_dns_again_s
    assert pod["terminationGracePeriodSeconds"] >= drain_s + triton_stops_s


def test_selectors_match_the_same_pods(objects: Objects) -> None:
    labels = objects["Deployment", "triton"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        objects["Deployment", "triton"]["spec"]["selector"]["matchLabels"],
        objects["Service", "triton"]["spec"]["selector"],
        objects["Service", "triton-each"]["spec"]["selector"],
        objects["PodDisruptionBudget", "triton"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy", "triton"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)
    assert objects["Service", "triton-each"]["spec"]["clusterIP"] == "None"
    target = objects["HorizontalPodAutoscaler", "triton"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "triton")


# What the autoscaler goes by


def test_queue_time_is_what_a_request_waited_for_all_models(objects: Objects, tmp_path: Path) -> None:
    """100 requests a second, each of which waits 1 ms for one step and 2 ms for the other."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool was not found: apt-get install prometheus (or scripts/system-packages.sh)")
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]
    (metric,) = objects["HorizontalPodAutoscaler", "triton"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="rankline"').replace("<<.GroupBy>>", "pod")

    def series(name: str, model: str, pod: str, step: int) -> dict[str, str]:
        return {
            "series": f'{name}{{namespace="rankline",pod="{pod}",model="{model}",version="1"}}',
            "values": f"0+{step}x60",
        }

    per_interval = 500  # requests in 5 s
    waited, counted = "nv_inference_queue_duration_us", "nv_inference_request_success"
    test = {
        "evaluation_interval": "5s",
        "tests": [
            {
                "interval": "5s",
                "input_series": [
                    series(waited, "movielens", "busy", 0),
                    series(waited, "movielens_transform_v1", "busy", 1_000 * per_interval),
                    series(waited, "movielens_predict_v1", "busy", 2_000 * per_interval),
                    *(series(counted, model, "busy", per_interval) for model in ("movielens", "movielens_predict_v1")),
                    series(waited, "movielens", "idle", 0),
                    series(counted, "movielens", "idle", 0),
                ],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "3m",
                        "exp_samples": [
                            {"labels": '{pod="busy"}', "value": 3e-3},
                            {"labels": '{pod="idle"}', "value": 0},
                        ],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.json"  # JSON is YAML
    file.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
