"""logosphere studio"""

import os
import secrets
import socket
import threading
import webbrowser
from contextlib import suppress

from logosphere.cli.arguments import Studio
from logosphere.cli.console import log
from logosphere.errors import UserError
from logosphere.studio.app import create_app
from logosphere.studio.connections import Limits, make_server
from logosphere.studio.library import Library
from logosphere.studio.security import parse_allowed_host
from logosphere.terminal import show

LOOPBACK = "127.0.0.1"


def studio(arguments: Studio, argv: list[str]) -> int:
    """logosphere studio"""
    # Each text is encoded by itself; in a shared pool of threads one that takes too long would hold up the others.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    library, token = Library(arguments.runs, arguments.report), secrets.token_urlsafe(18)
    for reason in library.unreadable.values():
        log(f"Left out: {reason}")

    def open_first() -> None:
        with suppress(UserError):  # the request that needs it reports the error
            library.models[0].load()

    threading.Thread(target=open_first, daemon=True).start()
    with socket.create_server((LOOPBACK, arguments.port)) as listener:
        port = listener.getsockname()[1]
        tunnels = [parse_allowed_host(host, port)[0] for host in arguments.allow_host]
        address = f"http://{LOOPBACK}:{port}/{token}/"
        show(f"The studio is open at {address}", flush=True)
        for tunnel in tunnels:
            show(f"or through the tunnel at http://{tunnel}/{token}/", flush=True)
        show("Only this machine can reach it. Ctrl-C closes it.", flush=True)
        if arguments.open:
            webbrowser.open(address)
        limits = Limits()
        app = create_app(library, token, port, allowed=arguments.allow_host, refusal_delay=limits.refusal_seconds)
        make_server(app, limits).run([listener])
    return 0
