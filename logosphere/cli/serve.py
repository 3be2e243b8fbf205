"""logosphere serve"""

import os

from logosphere.cli.arguments import Serve
from logosphere.cli.console import log
from logosphere.serving.limits import ServeLimits
from logosphere.serving.models import Catalogue
from logosphere.serving.server import KEY_VARIABLE, build_server, check_key, open_listener, run_until_stopped
from logosphere.terminal import show


def serve(arguments: Serve, argv: list[str]) -> int:
    """logosphere serve"""
    # Each text is encoded by itself; in a shared pool of threads one that takes too long would hold up the others.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    key = arguments.api_key or os.environ.get(KEY_VARIABLE, "")
    check_key(arguments.host, key)
    with open_listener(arguments.host, arguments.port) as listener:  # an occupied port is found before models load
        catalogue = Catalogue.load(arguments.runs, arguments.precision)
        limits = ServeLimits(queue=arguments.queue, batch=arguments.batch, request_seconds=arguments.timeout)
        server = build_server(
            catalogue, listener, host=arguments.host, key=key, allowed=arguments.allow_host, limits=limits
        )
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        show(f"Serving {', '.join(catalogue.models)} at http://{host}:{listener.getsockname()[1]}/v1", flush=True)
        access = "with the API key" if key else "from this machine only"
        log(f"Requests are accepted {access}. Ctrl-C stops the server.")
        run_until_stopped(server, listener)
    log("Stopped.")
    return 0
