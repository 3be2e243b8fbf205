"""logosphere studio"""

import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import tyro

from logosphere.cli.console import parse
from logosphere.errors import UserError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Arguments:
    """Open models in the browser: watch them write, lock and edit tokens, compare two on the same seed."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Folders of runs, or pretrained:NAME; without any, all of runs/ and the bundled checkpoints."""
    report: tuple[str, ...] = ()
    """Comparison reports to open beside them; without any, those of `logosphere compare` here and in runs/."""
    port: int = 0
    """Port on this machine; 0 takes a free one."""
    open: bool = False
    """Open the page in the browser."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "studio")
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError("The studio needs the extra 'web': pip install 'logosphere[web]'")
    if not 0 <= arguments.port < 1 << 16:
        raise UserError(f"Ports are numbers from 0 to 65535, not {arguments.port}.")

    import uvicorn

    from logosphere.studio.app import create_app
    from logosphere.studio.models import list_models
    from logosphere.studio.report_files import find_reports

    models, reports, token = list_models(arguments.runs), find_reports(arguments.report), secrets.token_urlsafe(18)

    def load_first() -> None:
        with suppress(UserError):  # the first request reports it
            models[0].load()

    threading.Thread(target=load_first, daemon=True).start()
    with socket.create_server((LOOPBACK, arguments.port)) as listener:
        port = listener.getsockname()[1]
        address = f"http://{LOOPBACK}:{port}/{token}/"
        print(f"The studio is open at {address}\nOnly this machine can reach it. Ctrl-C closes it.", flush=True)
        if arguments.open:
            import webbrowser

            webbrowser.open(address)
        settings = uvicorn.Config(
            create_app(models, token, port, reports=reports),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(settings).run([listener])
    return 0
