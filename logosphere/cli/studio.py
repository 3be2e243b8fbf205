"""logosphere studio"""

import secrets
import socket
import threading
import webbrowser
from contextlib import suppress

import uvicorn

from logosphere.cli.arguments import Studio
from logosphere.errors import UserError
from logosphere.studio.app import create_app
from logosphere.studio.models import find_reports, list_models

LOOPBACK = "127.0.0.1"


def studio(arguments: Studio, argv: list[str]) -> int:
    """logosphere studio"""
    books, reports, token = list_models(arguments.runs), find_reports(arguments.report), secrets.token_urlsafe(18)

    def open_first() -> None:
        with suppress(UserError):  # the request that needs it reports the error
            books[0].load()

    threading.Thread(target=open_first, daemon=True).start()
    with socket.create_server((LOOPBACK, arguments.port)) as listener:
        port = listener.getsockname()[1]
        address = f"http://{LOOPBACK}:{port}/{token}/"
        print(f"The studio is open at {address}\nOnly this machine can reach it. Ctrl-C closes it.", flush=True)
        if arguments.open:
            webbrowser.open(address)
        settings = uvicorn.Config(
            create_app(books, token, port, reports=reports),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(settings).run([listener])
    return 0
