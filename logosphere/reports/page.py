"""The frame of every page: style and theme are inside, nothing is fetched."""

from html import escape
from importlib.resources import files

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page itself forbids the browser every request."""


def page(title: str, body: str) -> str:
    """A page that needs nothing but itself; it has a button with the id `theme`."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{part('style.css')}</style></head><body><main>"
        f"{body}</main><script>{part('theme.js')}</script></body></html>\n"
    )


def part(name: str) -> str:
    """A style sheet or script that comes with this package."""
    return files("logosphere.reports").joinpath(name).read_text(encoding="utf-8")
