"""The child process of `LlamaCppBackend`: a llama.cpp server that ends with its parent.

The parent writes the server's configuration to the child's standard input, as one line of JSON. The
child answers with one line on standard output: the server's address or an error. llama.cpp's log
goes to standard error. The child ends when its standard input ends or when it gets a new parent
process, because both mean that the original parent is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

PARENT_CHECK_SECONDS = 1.0

HTTP_THREADS = 64
"""The number of HTTP threads that the server gets in addition to ``concurrency``. Each open
connection needs a thread, even an idle connection."""


def serve(config: dict[str, Any]) -> tuple[Any, str]:
    """Start a llama.cpp server with a configuration; return the server and its address."""
    # This loads 100 MB that only this process needs. It has no types.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = config["path"]
    params.model_alias = {config["name"]}
    params.api_keys = [config["api_key"]]
    if hasattr(params, "hostnames"):
        params.hostnames = ["127.0.0.1"]
    else:  # before 2026.10
        params.hostname = "127.0.0.1"
    params.port = 0
    params.ui = False
    params.n_parallel = config["concurrency"]
    params.n_ctx = config["context_size"] * config["concurrency"]
    params.n_threads_http = HTTP_THREADS + config["concurrency"]
    if config["threads"] is not None:
        params.cpuparams.n_threads = config["threads"]
        params.cpuparams_batch.n_threads = config["threads"]
    # This returns when the model is loaded, and raises if it can't be loaded.
    server = xllamacpp.Server(params)
    return server, str(server.listening_address)


def _end_with_parent(parent: int) -> None:
    """Wait until standard input ends; exit at once if the parent's id is no longer ``parent``."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    while os.read(0, 1024):
        pass


def main() -> None:
    """Run the server until the parent process is gone. Return early if the server can't start."""
    parent = os.getppid()
    # Ctrl-C is the parent's to handle. It ends this process when it no longer needs it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(sys.stdin.readline())
    try:
        server, address = serve(config)
    except Exception as exc:  # noqa: BLE001 (whatever it is, the parent should know)
        answer = {"error": f"{type(exc).__name__}: {exc}"}
        server = None
    else:
        answer = {"address": address}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    if server is None:
        return  # A normal exit lets llama.cpp write the rest of its log.
    _end_with_parent(parent)
    # A normal exit would wait for a server that is in the middle of a request.
    os._exit(0)
