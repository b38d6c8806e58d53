"""The sandboxes for clusters fit the schemas of kubernetes-sigs/agent-sandbox, and give programs nothing more.

The file beside this one has those schemas of its release v0.5.6, without descriptions. No cluster is started.
"""

from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
import yaml

from tests.acceptance.deploy.containers import DEPLOY

pytestmark = pytest.mark.requirement("EXE-2")
SCHEMAS: dict[str, Any] = orjson.loads(Path(__file__).with_name("agent_sandbox_v0.5.6.json").read_bytes())
DOCUMENTS: dict[str, Any] = {
    each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "agent-sandbox/sandboxes.yaml").read_text())
}


def forbid_others(schema: Any) -> Any:
    """Refuse fields that the schema does not have, which a cluster would drop without a word."""
    if isinstance(schema, list):
        return [forbid_others(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: forbid_others(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    return strict


def list_faults(document: dict[str, Any]) -> list[str]:
    schema = forbid_others(SCHEMAS[document["kind"]])
    # It is described elsewhere.
    schema["properties"]["metadata"] = {"type": "object"}
    return [each.message for each in jsonschema_rs.validator_for(schema).iter_errors(document)]


@pytest.mark.parametrize("kind", ["SandboxTemplate", "SandboxWarmPool", "SandboxClaim"])
def test_it_fits_its_schema(kind: str) -> None:
    assert DOCUMENTS[kind]["apiVersion"] == "extensions.agents.x-k8s.io/v1beta1"
    assert list_faults(DOCUMENTS[kind]) == []


def test_a_misspelt_field_is_found() -> None:
    claim = DOCUMENTS["SandboxClaim"]
    assert list_faults({**claim, "spec": {**claim["spec"], "lifeCycle": {}}}) != []
    assert list_faults({**claim, "spec": {}}) != []


def test_a_program_is_given_nothing_that_it_does_not_need() -> None:
    template = DOCUMENTS["SandboxTemplate"]["spec"]
    assert template["networkPolicy"] == {"ingress": [], "egress": []}
    assert template["envVarsInjectionPolicy"] == template["volumeClaimTemplatesPolicy"] == "Disallowed"
    pod = template["podTemplate"]["spec"]
    assert (pod["runtimeClassName"], pod["automountServiceAccountToken"]) == ("gvisor", False)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 65_534
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "privileged": False, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"}
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "100Mi"}}]
    assert DOCUMENTS["SandboxClaim"]["spec"]["lifecycle"]["shutdownPolicy"] == "DeleteForeground"


def test_its_parts_name_each_other() -> None:
    template, pool, claim = (DOCUMENTS[each] for each in ("SandboxTemplate", "SandboxWarmPool", "SandboxClaim"))
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]
    assert claim["spec"]["warmPoolRef"]["name"] == pool["metadata"]["name"]
