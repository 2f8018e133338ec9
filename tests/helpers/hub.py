"""Stand-in for the Hugging Face Hub that implements the HTTP endpoints for uploads."""

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandInHub:
    """State of the stand-in hub.

    Attributes:
        url: Address of the hub.
        token: Access token that the hub accepts.
        private: {repository name: whether the repository is private}.
        files: {repository name: {path: content}}.
        objects: {SHA-256: content} of the uploaded large files.
    """

    def __init__(self, url, token):
        self.url, self.token, self.private, self.files, self.objects = url, token, {}, {}, {}

    def answer(self, method, path, body):
        """Return (status, JSON object) for a request with a valid token."""
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            if wanted["organization"] != "someone":
                return 403, {"error": f'You don\'t have the rights to create a model under "{wanted["organization"]}".'}
            status = 409 if name in self.private else 200
            self.private.setdefault(name, wanted.get("private", wanted.get("visibility") == "private"))
            return status, {"url": f"{self.url}/{name}"}
        if method == "GET":
            return 404, {"error": "Repository not found"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if method == "PUT":
            self.objects[path.rpartition("/")[2]] = body
            return 200, {}
        if path.endswith("/preupload/main"):
            modes = {name["path"]: "regular" for name in json.loads(body)["files"]}
            modes |= {name: "lfs" for name in modes if name.endswith((".safetensors", ".spm"))}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            return 200, {"files": files}
        if path.endswith("/info/lfs/objects/batch"):
            wanted = [each["oid"] for each in json.loads(body)["objects"]]
            uploads = {oid: {"upload": {"href": f"{self.url}/objects/{oid}"}} for oid in wanted}
            objects = [{"oid": oid, "size": 1, "actions": actions} for oid, actions in uploads.items()]
            return 200, {"transfer": "basic", "objects": objects}
        assert path.endswith("/commit/main"), path
        repository = path.removeprefix("/api/models/").removesuffix("/commit/main")
        files = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
                assert hashlib.sha256(files[value["path"]]).hexdigest() == value["oid"]
        self.files[repository] = files
        return 200, {"commitUrl": f"{self.url}/{repository}/commit/1", "commitOid": "1"}


@contextlib.contextmanager
def stand_in_hub(token):
    """Serve a `StandInHub` on a free port while a `with` block runs."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stored = self.path.startswith("/objects/")  # uploads of large files carry no token
            status, answer = 401, {"error": "Invalid username or password."}
            if stored or self.headers.get("Authorization") == f"Bearer {hub.token}":
                status, answer = hub.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = StandInHub(f"http://127.0.0.1:{server.server_port}", token)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
