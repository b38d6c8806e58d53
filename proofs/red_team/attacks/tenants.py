"""Reach what belongs to another tenant, or to a person of the same name at another issuer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from deputize.core.mcp.constants import MODERN_VERSION
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer
from proofs.kit.http_client import HttpResponse
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding
from proofs.red_team.route_probes import RouteProbes
from proofs.red_team.token_holder import TokenHolder

NAME = "tenants"
_OTHER_TENANT = "an issuer names a tenant that it may not speak for"
_SAME_SUBJECT = "the same subject of another issuer reads a call"
_SAME_KEY = "the same subject of another issuer repeats a key"
CONTROL = Control(variant="red_team_any_tenant", attempts=frozenset({_OTHER_TENANT, _SAME_SUBJECT, _SAME_KEY}))
_CONSOLE = "proof-console"
_PARTNER, _SISTER = "https://partner.proof", "https://sister.proof"
_POLICY = """
@id("open") permit (principal, action, resource) unless { resource == Tool::"jobs.work" };
@id("asks") @decision("ask") @approvers("oncall") permit (principal, action, resource == Tool::"jobs.work");
"""
_POLICY_FILE = {"path": "beta.cedar", "text": _POLICY}
_RATE = 5
# The partner has a tenant of its own and operates it; the sister issues tokens for other people of acme.
_SETTINGS = """
human = true
console_audience = "{console}"

[[identity.issuers]]
issuer = "{partner}"
audience = "proof-gateway"
console_audience = "{console}"
jwks_file = "{partner_keys}"
tenant_claim = "tenant"
tenants = ["beta", "beta-*"]
human = true
operator = true

[[identity.issuers]]
issuer = "{sister}"
audience = "proof-gateway"
jwks_file = "{sister_keys}"
tenant = "acme"

[limits]
rules = [{{ name = "pace", kind = "rate", limit = {rate}, seconds = 600, per = ["user"], tools = "jobs.rest" }}]
"""
_ADMIN = "deputize:admin deputize:break-glass proof:write"
_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "intruder", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
_KEY = "order-of-ann"
_SECRET_LABEL, _OTHER_USER = "ann-buys-a-yacht", "zelda"
# A name that no attempt uses, so that the intruder's own entries do not have it.
_QUIET_SECRET = "islands/key"
_ONLY_TOOL, _NOTICE = "jobs.single", "https://acme.example/moves-to-another-island"


async def attack(arena: Arena, log: AttackLog) -> None:
    partner, sister = create_issuer(), create_issuer()
    port = arena.sandbox.pick_free_port()
    paths = [arena.sandbox.folder / f"{name}-{port}.json" for name in ("partner", "sister")]
    for path, issuer in zip(paths, (partner, sister), strict=True):
        path.write_text(issuer.render_jwks())
    gateway = await arena.start_gateway(
        tools="jobs.py",
        policies=_POLICY,
        port=port,
        env={"DEPUTIZE_IDENTITY__PUBLIC_URL": f"http://127.0.0.1:{port}"},
        settings=_SETTINGS.format(
            console=_CONSOLE, partner=_PARTNER, partner_keys=paths[0], sister=_SISTER, sister_keys=paths[1], rate=_RATE
        ),
    )
    intruder = await _open_tenants(arena, gateway, partner, sister)
    attempts: dict[str, Callable[[], Awaitable[Finding]]] = {
        _OTHER_TENANT: lambda: intruder.claim_tenant("acme"),
        _SAME_SUBJECT: intruder.read_as_same_subject,
        _SAME_KEY: intruder.repeat_key_as_same_subject,
        "the same subject of another issuer revokes a grant": intruder.revoke_as_same_subject,
        "an issuer spells a tenant otherwise": intruder.spell_tenant,
        "a call is read by its id": intruder.read_call,
        "a call is changed by its id": intruder.change_call,
        "a call is read through JSON-RPC and MCP": intruder.read_call_elsewhere,
        "a call is listed, searched or suggested": intruder.search,
        "an idempotency key replays another tenant's result": intruder.repeat_key,
        "an approval request is decided": intruder.decide,
        "an approval request is decided in a batch": intruder.decide_batch,
        "a grant is read or revoked": intruder.reach_grant,
        "a name that is revoked reaches another tenant": intruder.revoke_names,
        "a switch reaches another tenant": intruder.switch_off,
        "policies reach another tenant by headers and parameters": intruder.put_policies,
        "a contract replaces another tenant's": intruder.replace_contract,
        "a secret is read or replaced": intruder.reach_secret,
        "a backtest reads another tenant's decisions": intruder.backtest,
        "a token is exchanged for another tenant": intruder.exchange,
        "a delegated token is shown under another tenant's path": intruder.use_paths,
        "a tenant uses up another's limit": intruder.use_up_limit,
        "every documented route with what belongs to others": intruder.probe_routes,
    }
    # What the owner of a call may do with it, so that a refusal is the intruder's.
    baselines: dict[str, Callable[[], Awaitable[Finding]]] = {
        "a call is read by its id": intruder.read_own_call,
        "a call is read through JSON-RPC and MCP": intruder.read_own_call_elsewhere,
        "a grant is read or revoked": intruder.read_own_grant,
    }
    for name, attempt in attempts.items():
        await log.attempt(name, attempt, baseline=baselines.get(name))


async def _open_tenants(arena: Arena, gateway: GatewayHandle, partner: Issuer, sister: Issuer) -> "Intruder":
    """Give acme something worth stealing, and the intruder a tenant with every right in it."""
    holder = TokenHolder(url=gateway.url, issuer=arena.issuer)
    ann = holder.sign("ann")
    made = await holder.call(ann, "jobs.mark", {"label": _SECRET_LABEL}, key=_KEY)
    asked = await holder.call(ann, "jobs.work", {"label": _SECRET_LABEL, "place": "desk"}, key="asked")
    await holder.call(holder.sign(_OTHER_USER), "jobs.mark", {"label": "other"})
    grant = await holder.exchange(ann, {"agent": "helper"})
    root = holder.sign("root", scope=_ADMIN)
    secret = await holder.send("POST", "/v1/secrets", {"name": "crm/key", "value": "acme's own"}, token=root)
    await holder.send("POST", "/v1/secrets", {"name": _QUIET_SECRET, "value": "acme's own"}, token=root)
    notice = {"migration_guide": _NOTICE}
    path = f"/v1/tools/{_ONLY_TOOL}/versions/0.1.0/deprecation"
    deprecation = await holder.send("PUT", path, notice, token=root)
    if made.get("state") != "succeeded" or {each.status // 100 for each in (grant, secret, deprecation)} != {2}:
        raise RuntimeError(f"acme has nothing: {grant.status} {secret.body!r} {deprecation.body!r} {made}")
    intruder = Intruder(
        holder=holder, partner=partner, sister=sister, ann=ann, root=root, call_id=made["call_id"],
        request_id=asked["approval"]["approval_id"], asked_id=asked["call_id"], grant_id=grant.json()["grant_id"],
    )  # fmt: skip
    admin = intruder.sign("mallory", scope=_ADMIN)
    answers = [await holder.send("PUT", "/v1/policies", {"files": [_POLICY_FILE]}, token=admin)]
    for tool in ("jobs.rest", "jobs.mark", "jobs.work"):
        contract = (await holder.send("GET", f"/v1/tools/{tool}", token=root)).json()["contract"]
        contract["handler"] = {"target": f"tools.{tool.replace('.', ':')}"}
        answers.append(await holder.send("POST", "/v1/tools", contract, token=admin))
    if any(each.status not in (200, 201) for each in answers):
        raise RuntimeError(f"the intruder has no tenant: {[each.body[:200] for each in answers]}")
    return intruder


@dataclass(frozen=True, kw_only=True, slots=True)
class Intruder:
    """Mallory, who owns tenant beta and has its issuer sign what she likes, and what acme's Ann has."""

    holder: TokenHolder
    partner: Issuer
    sister: Issuer
    ann: str
    root: str
    call_id: str
    request_id: str
    asked_id: str
    grant_id: str

    def sign(self, user: str, **claims: Any) -> str:
        return self.holder.sign(user, signer=self.partner, **{"iss": _PARTNER, "tenant": "beta", **claims})

    async def claim_tenant(self, tenant: Any) -> Finding:
        token = self.sign("ann", tenant=tenant)
        return _judge_statuses([await self.holder.send("GET", f"/v1/calls/{self.call_id}", token=token)])

    async def spell_tenant(self) -> Finding:
        names = ("ACME", "acme ", "beta-/../acme", "beta\u0000acme", "*", ["beta", "acme"], {"acme": 1}, "", "beta-*")
        answers = []
        for name in names:
            token = self.sign("ann", tenant=name, scope=_ADMIN)
            answers.append(await self.holder.send("GET", f"/v1/calls/{self.call_id}", token=token))
        # A second claim of the same name, and the claims that other issuers use for it.
        for claims in ({"tid": "acme"}, {"org_id": "acme"}, {"iss": f"{_PARTNER}/../issuer.proof"}):
            token = self.sign("ann", **claims)
            answers.append(await self.holder.send("GET", f"/v1/calls/{self.call_id}", token=token))
        return _judge_statuses(answers)

    async def read_as_same_subject(self) -> Finding:
        return _judge_statuses([await self.holder.send("GET", f"/v1/calls/{self.call_id}", token=self._sign_sister())])

    async def repeat_key_as_same_subject(self) -> Finding:
        answer = await self.holder.call(self._sign_sister(), "jobs.mark", {"label": _SECRET_LABEL}, key=_KEY)
        return Finding(succeeded=answer.get("call_id") == self.call_id, evidence=str(answer)[:160])

    async def revoke_as_same_subject(self) -> Finding:
        path = f"/v1/grants/{self.grant_id}"
        token = self._sign_sister()
        return _judge_statuses([await self.holder.send(method, path, token=token) for method in ("GET", "DELETE")])

    async def read_call(self) -> Finding:
        paths = [f"/v1/calls/{each}{tail}" for each in self._ids for tail in ("", "/events", "/decision", "/audit")]
        return _judge_statuses([await self.holder.send("GET", each, token=self._sign_admin()) for each in paths])

    async def read_own_call(self) -> Finding:
        paths = [f"/v1/calls/{each}{tail}" for each in self._ids for tail in ("", "/decision")]
        answers = [await self.holder.send("GET", each, token=self.ann) for each in paths]
        return Finding(succeeded=all(each.status == 200 for each in answers), evidence=_list(answers))

    async def read_own_grant(self) -> Finding:
        return _judge_statuses([await self.holder.send("GET", f"/v1/grants/{self.grant_id}", token=self.ann)])

    async def change_call(self) -> Finding:
        answers = []
        for call_id in self._ids:
            for act, body in (("cancel", {}), ("retry", {}), ("rollback", {"checkpoint": "half"})):
                path = f"/v1/calls/{call_id}/{act}"
                answers.append(await self.holder.send("POST", path, body, token=self._sign_admin()))
        return _judge_statuses(answers)

    async def read_call_elsewhere(self) -> Finding:
        token = self._sign_admin()
        answers = [await self._send_rpc(token, each) for each in ("calls.get", "calls.cancel")]
        answers += [await self._send_task(token, each) for each in ("tasks/get", "tasks/update", "tasks/cancel")]
        return await self._judge_leak([*answers, await self._call_builtin(token)])

    async def read_own_call_elsewhere(self) -> Finding:
        """Read the same as Ann; what changes a call is left out."""
        answers = [
            await self._send_rpc(self.ann, "calls.get"),
            await self._send_task(self.ann, "tasks/get"),
            await self._call_builtin(self.ann),
        ]
        evidence = " ".join(each.body[:120].decode(errors="replace") for each in answers)
        return Finding(succeeded=all("result" in each.json() for each in answers), evidence=evidence)

    async def _send_rpc(self, token: str, method: str) -> HttpResponse:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"call_id": self.call_id}}
        return await self.holder.send("POST", "/rpc", request, token=token)

    async def _send_task(self, token: str, method: str) -> HttpResponse:
        return await self._send_mcp(token, method, self.asked_id, {"taskId": self.asked_id, "inputResponses": {}})

    async def _call_builtin(self, token: str) -> HttpResponse:
        params = {"name": "calls_get", "arguments": {"call_id": self.call_id}}
        return await self._send_mcp(token, "tools/call", "calls_get", params)

    async def _send_mcp(self, token: str, method: str, name: str, params: dict[str, Any]) -> HttpResponse:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": _META}}
        headers = {
            "accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN_VERSION,
            "mcp-method": method, "mcp-name": name,
        }  # fmt: skip
        return await self.holder.send("POST", "/mcp", request, token=token, headers=headers)

    async def search(self) -> Finding:
        paths = [
            "/v1/calls?limit=100", "/v1/calls?tenant=acme", "/v1/approvals", "/v1/approvals/suggestions",
            "/v1/tools/search?q=yacht", "/v1/grants", "/v1/revocations", "/v1/switches", "/v1/human-tasks",
            "/v1/webhooks/deadletters", "/v1/secrets", "/v1/servers", "/v1/circuits", "/v1/surface",
        ]  # fmt: skip
        headers = {"x-tenant": "acme", "deputize-tenant": "acme", "x-forwarded-prefix": "/t/acme"}
        answers = [await self.holder.send("GET", each, token=self._sign_admin(), headers=headers) for each in paths]
        return await self._judge_leak(answers)

    async def repeat_key(self) -> Finding:
        """Use Ann's name, agent and key for the same call: it must be a call of its own."""
        token = self.sign("ann")
        answer = await self.holder.call(token, "jobs.mark", {"label": _SECRET_LABEL}, key=_KEY)
        if answer.get("state") != "succeeded":
            raise RuntimeError(f"the intruder has no such tool, so the key shows nothing: {answer}")
        return Finding(succeeded=answer["call_id"] == self.call_id, evidence=str(answer)[:160])

    async def decide(self) -> Finding:
        token, answers = self._sign_in(), []
        for request_id in (self.request_id, self.asked_id):
            path = f"/v1/approvals/{request_id}"
            binding = (await self.holder.send("GET", path, token=self.ann)).json()["binding"]
            answers.append(await self.holder.send("GET", path, token=token))
            for act, body in (("approve", {"binding": binding}), ("deny", {}), ("break-glass", {"binding": binding})):
                body = {"reason": "an attempt", **body}
                answers.append(await self.holder.send("POST", f"{path}/{act}", body, token=token))
        return _judge_statuses(answers)

    async def decide_batch(self) -> Finding:
        """Decide acme's request alone, and together with one of beta's own."""
        asked = await self.holder.call(self.sign("ben"), "jobs.work", {"label": "own", "place": "desk"})
        own_id = asked["approval"]["approval_id"]
        for tickets in ([self.request_id], [self.request_id, own_id]):
            for decision in ("approve", "deny"):
                body = {
                    "approval_ids": tickets,
                    "decision": decision,
                    "reason": "an attempt",
                    "vary": ["label", "place"],
                }
                answer = await self.holder.send("POST", "/v1/approvals/batch", body, token=self._sign_in())
        return await self._judge_pending(answer)

    async def reach_grant(self) -> Finding:
        path = f"/v1/grants/{self.grant_id}"
        answers = [await self.holder.send(each, path, token=self._sign_admin()) for each in ("GET", "DELETE")]
        return _judge_statuses(answers)

    async def revoke_names(self) -> Finding:
        """Revoke in beta every name that acme uses; the attack succeeds if Ann is then refused."""
        for kind, value in (
            ("subject", "root"), ("subject", "issuer=https://issuer.proof ann"), ("agent", "helper"),
            ("grant", self.grant_id),
        ):  # fmt: skip
            body = {"kind": kind, "value": value}
            await self.holder.send("POST", "/v1/revocations", body, token=self._sign_admin())
        answers = [
            await self.holder.send("GET", f"/v1/calls/{self.call_id}", token=self.ann),
            await self.holder.send("GET", "/v1/policies", token=self.root),
            await self.holder.send("GET", f"/v1/grants/{self.grant_id}", token=self.ann),
        ]
        is_revoked = answers[2].json().get("state") != "active"
        return Finding(succeeded=is_revoked or any(each.status != 200 for each in answers), evidence=_list(answers))

    async def switch_off(self) -> Finding:
        for kind, value in (("tenant", "acme"), ("tool", "jobs.mark"), ("agent", "helper")):
            body = {"kind": kind, "value": value, "off": True, "reason": "an attempt"}
            await self.holder.send("POST", "/v1/switches", body, token=self._sign_admin())
        helper = self.holder.sign("ann", act={"sub": "helper"})
        answer = await self.holder.call(helper, "jobs.mark", {"label": "still on"})
        on = {"kind": "tool", "value": "jobs.mark", "off": False}
        await self.holder.send("POST", "/v1/switches", on, token=self._sign_admin())
        return Finding(succeeded=answer.get("state") != "succeeded", evidence=str(answer)[:160])

    async def put_policies(self) -> Finding:
        before = (await self.holder.send("GET", "/v1/policies", token=self.root)).json()["digest"]
        body = {"files": [{"path": "x.cedar", "text": '@id("x") permit (principal, action, resource);'}]}
        headers = {"x-tenant": "acme", "x-tenant-id": "acme", "x-original-url": "/t/acme/v1/policies"}
        answers = [
            await self.holder.send("PUT", path, {**body, **more}, token=self._sign_admin(), headers=headers)
            for path in ("/v1/policies", "/v1/policies?tenant=acme", "/t/acme/v1/policies", "/v1/policies/../policies")
            for more in ({}, {"tenant": "acme"})
        ]
        after = (await self.holder.send("GET", "/v1/policies", token=self.root)).json()["digest"]
        return Finding(succeeded=after != before, evidence=_list(answers))

    async def replace_contract(self) -> Finding:
        before = (await self.holder.send("GET", "/v1/tools/jobs.mark", token=self.root)).body
        contract = (await self.holder.send("GET", "/v1/tools/jobs.mark", token=self._sign_admin())).json()["contract"]
        contract["handler"] = {"target": "tools.jobs:mark"}
        answers = [
            await self.holder.send("POST", "/v1/tools", {**contract, **more}, token=self._sign_admin())
            for more in ({"version": "9.9.9"}, {"description": "Mallory's own."}, {"tenant": "acme"})
        ]
        path = "/v1/tools/jobs.mark/versions/0.1.0/state"
        answers.append(await self.holder.send("POST", path, {"state": "retired"}, token=self._sign_admin()))
        after = (await self.holder.send("GET", "/v1/tools/jobs.mark", token=self.root)).body
        return Finding(succeeded=_drop_trace(after) != _drop_trace(before), evidence=_list(answers))

    async def reach_secret(self) -> Finding:
        token = self._sign_admin()
        answers = [await self.holder.send("GET", "/v1/secrets", token=token)]
        for name in ("../acme/crm/key", "acme/crm/key", "crm/key"):
            body = {"name": name, "value": "mallory's"}
            answers.append(await self.holder.send("POST", "/v1/secrets", body, token=token))
            answers.append(await self.holder.send("DELETE", f"/v1/secrets?name={name}", token=token))
        listed = await self.holder.send("GET", "/v1/secrets", token=self.root)
        is_changed = b"crm/key" not in listed.body or b"mallory" in listed.body
        return Finding(succeeded=is_changed or b"crm/key" in answers[0].body, evidence=_list(answers))

    async def backtest(self) -> Finding:
        forbid = '@id("x") forbid (principal, action, resource);'
        body = {"files": [{"path": "x.cedar", "text": forbid}]}
        answer = await self.holder.send("POST", "/v1/policies/backtest", body, token=self._sign_admin())
        if answer.status != 200 or b"result" not in answer.body:
            raise RuntimeError(f"nothing was backtested: {answer.status} {answer.body[:200]!r}")
        return await self._judge_leak([answer])

    async def exchange(self) -> Finding:
        """Ask for acme by audience and tenant, and with a token of Ann's as the actor."""
        mallory = self.sign("mallory")
        fields: tuple[dict[str, str], ...] = (
            {"audience": f"{self.holder.url}/t/acme"}, {"resource": f"{self.holder.url}/t/acme"}, {"tenant": "acme"},
            {"actor_token": self.ann, "actor_token_type": "urn:ietf:params:oauth:token-type:access_token"},
        )  # fmt: skip
        answers = [await self.holder.exchange(mallory, {"agent": "bot", **each}) for each in fields]
        tokens = [each.json()["access_token"] for each in answers if each.status == 200]
        reached = [await self.holder.send("GET", f"/v1/calls/{self.call_id}", token=each) for each in tokens]
        return Finding(succeeded=any(each.status == 200 for each in reached), evidence=_list([*answers, *reached]))

    async def use_paths(self) -> Finding:
        token = await self.holder.delegate(self.sign("mallory"), agent="bot")
        paths = (
            f"/t/acme/v1/calls/{self.call_id}", f"/v1/calls/{self.call_id}?tenant=acme", f"/v1/calls/{self.call_id}%00",
            f"//t/acme/v1/calls/{self.call_id}", f"/v1/calls/./{self.call_id}", f"/v1/calls/{self.call_id.upper()}",
            f"/v1/calls/%7B{self.call_id}%7D",
        )  # fmt: skip
        headers = {"x-tenant": "acme", "x-forwarded-host": "acme", "x-original-url": f"/v1/calls/{self.call_id}"}
        return _judge_statuses([await self.holder.send("GET", each, token=token, headers=headers) for each in paths])

    async def use_up_limit(self) -> Finding:
        """Call as beta's Ann until she is refused; acme's Ann must not be."""
        theirs = [await self.holder.call(self.sign("ann"), "jobs.rest", {"label": "x"}) for _ in range(_RATE + 1)]
        if theirs[-1].get("error", {}).get("slug") != "rate-limited":
            raise RuntimeError("the limit was not used up, so it shows nothing")
        answer = await self.holder.call(self.ann, "jobs.rest", {"label": "x"})
        return Finding(succeeded=answer.get("state") != "succeeded", evidence=str(answer)[:160])

    async def probe_routes(self) -> Finding:
        """Try every documented route as strangers with every right, as other users of acme and as other agents."""
        entry_id = (await self.holder.send("GET", "/v1/audit", token=self.ann)).json()["entries"][0]["id"]
        ids = (*self._ids, self.request_id, self.grant_id, entry_id)
        probes = RouteProbes(
            holder=self.holder, real={"id": ids, "name": [_ONLY_TOOL], "version": ["0.1.0"], "tenant": ["acme"]}
        )
        for who, token in (("another tenant's administrator", self._sign_admin()), ("its console", self._sign_in())):
            await probes.probe(who, token, (_SECRET_LABEL, _OTHER_USER, _QUIET_SECRET, _NOTICE), is_stranger=True)
        eve = self.holder.sign("eve")
        for who, token in (
            ("a namesake of another issuer", self._sign_sister()),
            ("another user", eve),
            ("another user's agent", await self.holder.delegate(eve, agent="bot")),
            ("another agent of the user", await self.holder.delegate(self.ann, agent="bot")),
        ):
            await probes.probe(who, token, (_SECRET_LABEL, _QUIET_SECRET), is_stranger=False)
        return Finding(succeeded=bool(probes.crossings), evidence=f"{probes.count} probes; {probes.crossings[:5]}")

    @property
    def _ids(self) -> tuple[str, ...]:
        return self.call_id, self.asked_id

    def _sign_admin(self) -> str:
        return self.sign("mallory", scope=_ADMIN)

    def _sign_in(self) -> str:
        return self.sign("mallory", aud=_CONSOLE, groups=["oncall"], scope=_ADMIN)

    def _sign_sister(self) -> str:
        return self.holder.sign("ann", signer=self.sister, iss=_SISTER)

    async def _judge_pending(self, answer: HttpResponse) -> Finding:
        state = (await self.holder.send("GET", f"/v1/approvals/{self.request_id}", token=self.ann)).json()["state"]
        return Finding(succeeded=state != "open", evidence=f"{answer.status} {state} {answer.body[:120]!r}")

    async def _judge_leak(self, answers: list[HttpResponse]) -> Finding:
        """Succeed if an answer contains what only acme knows, or if one of its calls changed."""
        words = (_SECRET_LABEL, _OTHER_USER, "crm/key", "root")
        leaks = [word for word in words if any(word.encode() in each.body for each in answers)]
        state = (await self.holder.send("GET", f"/v1/calls/{self.asked_id}", token=self.ann)).json()["state"]
        is_changed = state != "awaiting_approval"
        return Finding(succeeded=bool(leaks) or is_changed, evidence=f"{leaks} {state}; {_list(answers)}")


def _judge_statuses(answers: list[HttpResponse]) -> Finding:
    return Finding(succeeded=any(each.status < 400 for each in answers), evidence=_list(answers))


def _list(answers: list[HttpResponse]) -> str:
    return " ".join(str(each.status) for each in answers)


def _drop_trace(body: bytes) -> bytes:
    return body.partition(b'"trace_id"')[0]
