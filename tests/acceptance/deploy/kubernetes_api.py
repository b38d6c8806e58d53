"""A small stand-in for the API of Kubernetes: it stores what helm sends, in order, and ends jobs as it is told.

It schedules nothing and validates nothing: no cluster can be started where these tests run. Helm is the real one.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
# The kinds of the chart, by the group and version that serves them.
_KINDS: Final = {
    "api/v1": ("Service",),
    "apis/apps/v1": ("StatefulSet",),
    "apis/batch/v1": ("Job",),
    "apis/autoscaling/v2": ("HorizontalPodAutoscaler",),
    "apis/networking.k8s.io/v1": ("NetworkPolicy",),
    "apis/policy/v1": ("PodDisruptionBudget",),
}
_PLURALS: Final = {"NetworkPolicy": "networkpolicies"}
_VERBS: Final = ("create", "delete", "get", "list", "patch", "update", "watch")
_JOB_SECONDS: Final = 0.5
_WATCH_SECONDS: Final = 30


class KubernetesApi:
    """The objects of one namespace, and what was done to them: `("create", "Job", "shop-migrate")`."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.journal: list[tuple[str, str, str]] = []
        self.do_jobs_fail = False
        self.version = 0
        self.changed = threading.Condition()

    def find(self, kind: str, name: str) -> Object | None:
        found = [each for each in self.objects.values() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found[0] if found else None

    def store(self, verb: str, path: str, stored: Object) -> Object:
        """Keep an object, and note what happened to it."""
        with self.changed:
            self.version += 1
            stored["metadata"] |= {"namespace": "default", "uid": path, "resourceVersion": str(self.version)}
            self.objects[path] = stored
            self.journal.append((verb, stored["kind"], stored["metadata"]["name"]))
            self.changed.notify_all()
        if (verb, stored["kind"]) == ("create", "Job"):
            threading.Timer(_JOB_SECONDS, self._end_job, (path,)).start()
        return stored

    def delete(self, path: str) -> Object:
        with self.changed:
            deleted = self.objects.pop(path)
            self.journal.append(("delete", deleted["kind"], deleted["metadata"]["name"]))
            return deleted

    def _end_job(self, path: str) -> None:
        verb, kind = ("fail", "Failed") if self.do_jobs_fail else ("complete", "Complete")
        condition = {"type": kind, "status": "True", "reason": "BackoffLimitExceeded" if self.do_jobs_fail else ""}
        self.store(verb, path, self.objects[path] | {"status": {"conditions": [condition]}})


def discover(path: str) -> Object | None:
    """Answer what is served where; None for a path that names objects."""
    groups = {each.split("/")[1]: each.removeprefix("apis/") for each in _KINDS if each.startswith("apis/")}
    if path == "version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        versions = {name: {"groupVersion": each, "version": each.split("/")[1]} for name, each in groups.items()}
        listed = [{"name": name, "versions": [each], "preferredVersion": each} for name, each in versions.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if path in _KINDS:
        resources = [
            {"name": name_plural(kind), "singularName": "", "namespaced": True, "kind": kind, "verbs": _VERBS}
            for kind in _KINDS[path]
        ]
        group_version = path.partition("/")[2]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
    return None


def name_plural(kind: str) -> str:
    return _PLURALS.get(kind, f"{kind.lower()}s")


def merge(old: Any, patch: Any) -> Any:
    """Apply a strategic merge patch, as far as helm's need it: lists of named things are merged by their names."""
    if isinstance(old, dict) and isinstance(patch, dict):
        changes = {name: value for name, value in patch.items() if not name.startswith("$")}
        merged = old | {name: merge(old.get(name), value) for name, value in changes.items()}
        return {name: value for name, value in merged.items() if value is not None}
    if isinstance(old, list) and isinstance(patch, list) and all("name" in each for each in (*old, *patch)):
        by_name = {each["name"]: each for each in old}
        return list((by_name | {each["name"]: merge(by_name.get(each["name"]), each) for each in patch}).values())
    return patch


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: KubernetesApi

    def do_GET(self) -> None:
        path, query = self._parse()
        found = discover(path) or self.api.objects.get(path)
        if path == "openapi/v2":
            self._answer(200, b"", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        elif found is not None:
            self._answer(200, found)
        elif path.rpartition("/")[2] not in {name_plural(kind) for kinds in _KINDS.values() for kind in kinds}:
            self._answer(404, _describe_failure(404, "NotFound"))
        elif "watch" in query:
            self._watch(path, query)
        else:
            items = self._select(path, query)
            self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": self._version(), "items": items})

    def do_POST(self) -> None:
        path, _ = self._parse()
        body = self._read()
        self._answer(201, self.api.store("create", f"{path}/{body['metadata']['name']}", body))

    def do_PATCH(self) -> None:
        path, _ = self._parse()
        self._answer(200, self.api.store("patch", path, merge(self.api.objects[path], self._read())))

    def do_DELETE(self) -> None:
        path, _ = self._parse()
        self._read()
        found = path in self.api.objects
        self._answer(200 if found else 404, self.api.delete(path) if found else _describe_failure(404, "NotFound"))

    def log_message(self, format: str, *arguments: object) -> None:
        """Stay silent."""

    def _parse(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return parts.path.strip("/"), parse_qs(parts.query)

    def _read(self) -> Object:
        body: Object = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        return body

    def _version(self) -> Object:
        return {"resourceVersion": str(self.api.version)}

    def _select(self, path: str, query: dict[str, list[str]]) -> list[Object]:
        wanted = "".join(query.get("fieldSelector", [])).removeprefix("metadata.name=")
        objects = [each for name, each in self.api.objects.items() if name.startswith(f"{path}/")]
        return [each for each in objects if wanted in ("", each["metadata"]["name"])]

    def _watch(self, path: str, query: dict[str, list[str]]) -> None:
        """Send what changes, until helm has seen enough."""
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        seen, ends_at = int("".join(query.get("resourceVersion", [])) or 0), time.monotonic() + _WATCH_SECONDS
        while time.monotonic() < ends_at:
            with self.api.changed:
                for each in self._select(path, query):
                    if int(each["metadata"]["resourceVersion"]) > seen:
                        event = json.dumps({"type": "MODIFIED", "object": each})
                        try:
                            self.wfile.write(event.encode() + b"\n")
                        except OSError:
                            return
                seen = self.api.version
                self.api.changed.wait(1)

    def _answer(self, status: int, value: Object | bytes, kind: str = "application/json") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _describe_failure(code: int, reason: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}


@contextmanager
def serve_kubernetes_api() -> Iterator[tuple[KubernetesApi, str]]:
    """Serve an empty namespace; yield it, and its address."""
    api = KubernetesApi()
    handler = type("Handler", (_Handler,), {"api": api})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield api, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
