"""A stand-in for the Hugging Face Hub: an HTTP server in this process, with what its client asks for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import close_session, constants

TOKEN = "hf_ofthestandin"


@dataclass
class Repo:
    """A repo: its commits, which its branches name."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # path -> content, by commit
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str = "") -> str:
        """Add a commit with these files to a branch; returns its name."""
        parts = [self.branches.get(branch, "").encode(), message.encode()]
        parts += [each for name, content in sorted(files.items()) for each in (name.encode(), content)]
        name = hashlib.sha1(b"\0".join(parts)).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        self.messages.append(message)
        return name


class StandInHub(ThreadingHTTPServer):
    """The server; `repos` by name, and what was asked, as `METHOD /path`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}  # what was uploaded by SHA-256
        self.asked: list[str] = []
        # what a resolved file is turned into, for a Hub that breaks its word
        self.sent: Callable[[str, bytes], bytes] = lambda _, content: content

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandInHub

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        url = urlsplit(self.path)
        self.server.asked.append(f"{self.command} {url.path}")
        may_write = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.command in ("POST", "PUT") and not may_write and not url.path.startswith("/large/"):
            self._answer({"error": "Invalid username or password."}, 401)
            return
        for pattern, name in _ROUTES.items():
            found = re.fullmatch(pattern, url.path)
            if found is not None:
                getattr(self, name)([unquote(part) for part in found.groups()], parse_qs(url.query), body)
                return
        self._refuse(404, "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815 - names of `http.server`

    def _repo(self, name: str) -> Repo | None:
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            self._answer({"error": "Repository not found"}, 401, X_Error_Code="RepoNotFound")
            return None
        return repo

    def _info(self, parts: list[str], query: dict[str, list[str]], _: bytes) -> None:
        name, revision = parts[0], parts[1] if len(parts) > 1 else "main"
        repo = self._repo(name)
        if repo is None:
            return
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._refuse(404, "RevisionNotFound")
            return
        siblings = [
            {"rfilename": path, **({"size": len(content)} if "blobs" in query else {})}
            for path, content in repo.commits[commit].items()
        ]
        self._answer({"id": name, "sha": commit, "private": repo.private, "siblings": siblings})

    def _create(self, _: list[str], __: dict[str, list[str]], body: bytes) -> None:
        given = json.loads(body)
        name = f"{given['organization']}/{given['name']}"
        if name in self.server.repos:
            self._answer({"error": "You already created this model repo", "url": f"{self.server.address}/{name}"}, 409)
            return
        private = given.get("private") or given.get("visibility") == "private"
        self.server.repos[name] = repo = Repo(private)
        repo.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self._answer({"url": f"{self.server.address}/{name}", "name": name})

    def _branch(self, parts: list[str], _: dict[str, list[str]], __: bytes) -> None:
        repo = self.server.repos[parts[0]]
        if parts[1] in repo.branches:
            self._answer({"error": "Reference already exists"}, 409)
            return
        repo.branches[parts[1]] = repo.branches["main"]
        self._answer({})

    def _validate(self, _: list[str], __: dict[str, list[str]], body: bytes) -> None:
        assert json.loads(body)["content"].startswith("---\n")
        self._answer({"errors": [], "warnings": []})

    def _preupload(self, _: list[str], __: dict[str, list[str]], body: bytes) -> None:
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith((".safetensors", ".mp4", ".gif")) else "regular",
                "shouldIgnore": False,
            }
            for each in json.loads(body)["files"]
        ]
        self._answer({"files": files})

    def _batch(self, _: list[str], __: dict[str, list[str]], body: bytes) -> None:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.server.address}/large/{each['oid']}"}}}
            for each in json.loads(body)["objects"]
        ]
        self._answer({"transfer": "basic", "objects": objects})

    def _large(self, parts: list[str], _: dict[str, list[str]], body: bytes) -> None:
        assert hashlib.sha256(body).hexdigest() == parts[0]
        self.server.large[parts[0]] = body
        self._answer({})

    def _commit(self, parts: list[str], _: dict[str, list[str]], body: bytes) -> None:
        name, branch = parts
        repo, message = self.server.repos[name], ""
        files = dict(repo.commits[repo.branches[branch]])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
                assert value["parentCommit"] == repo.branches[branch]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            else:
                assert entry["key"] == "deletedFile"
                del files[value["path"]]
        oid = repo.commit(branch, files, message)
        self._answer({"commitOid": oid, "commitUrl": f"{self.server.address}/{name}/commit/{oid}"})

    def _resolve(self, parts: list[str], _: dict[str, list[str]], __: bytes) -> None:
        name, revision, path = parts
        repo = self._repo(name)
        if repo is None:
            return
        commit = repo.branches.get(revision, revision)
        content = repo.commits.get(commit, {}).get(path)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._answer(self.server.sent(path, content), X_Repo_Commit=commit, ETag=etag)


_REPO = "([^/]+/[^/]+)"
_ROUTES = {
    "/api/repos/create": "_create",
    "/api/validate-yaml": "_validate",
    f"/api/models/{_REPO}/branch/([^/]+)": "_branch",
    f"/api/models/{_REPO}/preupload/([^/]+)": "_preupload",
    f"/api/models/{_REPO}/commit/([^/]+)": "_commit",
    f"/api/models/{_REPO}/revision/([^/]+)": "_info",
    f"/api/models/{_REPO}": "_info",
    rf"/{_REPO}\.git/info/lfs/objects/batch": "_batch",
    "/large/([0-9a-f]{64})": "_large",
    f"/{_REPO}/resolve/([^/]+)/(.+)": "_resolve",
}


@contextmanager
def served(home: Path, patch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """Start the server, and make the client ask it; what is downloaded is below `home`."""
    hub = StandInHub()
    Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    patch.setenv("HF_ENDPOINT", hub.address)
    patch.setenv("HF_TOKEN", TOKEN)
    for name, value in {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": True, "HF_HUB_DISABLE_TELEMETRY": True}.items():
        patch.setattr(constants, name, value)
    patch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield hub
    hub.shutdown()
    hub.server_close()
    close_session()  # its connections to this server


def run_files(folder: Path) -> dict[str, bytes]:
    """The files of a run folder as those of a repo."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
