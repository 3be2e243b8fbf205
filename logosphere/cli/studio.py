"""logosphere studio"""

import secrets
import socket
import threading
import webbrowser
from contextlib import suppress

import uvicorn

from logosphere.cli.arguments import Studio
from logosphere.errors import UserError
from logosphere.studio.app import create_app, parse_allowed_host
from logosphere.studio.library import Library

LOOPBACK = "127.0.0.1"


def studio(arguments: Studio, argv: list[str]) -> int:
    """logosphere studio"""
    library, token = Library(arguments.runs, arguments.report), secrets.token_urlsafe(18)

    def open_first() -> None:
        with suppress(UserError):  # the request that needs it reports the error
            library.models[0].load()

    threading.Thread(target=open_first, daemon=True).start()
    with socket.create_server((LOOPBACK, arguments.port)) as listener:
        port = listener.getsockname()[1]
        tunnels = [parse_allowed_host(host, port)[0] for host in arguments.allow_host]
        address = f"http://{LOOPBACK}:{port}/{token}/"
        print(f"The studio is open at {address}", flush=True)
        for tunnel in tunnels:
            print(f"or through the tunnel at http://{tunnel}/{token}/", flush=True)
        print("Only this machine can reach it. Ctrl-C closes it.", flush=True)
        if arguments.open:
            webbrowser.open(address)
        settings = uvicorn.Config(
            create_app(library, token, port, allowed=arguments.allow_host),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(settings).run([listener])
    return 0
