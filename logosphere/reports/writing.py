"""A board on disk: the page, the same as Markdown, and all of its data as JSON, side by side."""

from dataclasses import asdict
from pathlib import Path

from logosphere.atomic import plain, write_json, write_whole
from logosphere.reports.board import Board
from logosphere.reports.html import html
from logosphere.reports.markdown import markdown


def write_board(board: Board, page: Path) -> list[Path]:
    """Write out.html, out.md and out.json; the paths written."""
    written = [page, page.with_suffix(".md"), page.with_suffix(".json")]
    write_whole(written[0], html(board).encode())
    write_whole(written[1], markdown(board).encode())
    write_json(written[2], plain(asdict(board)))
    return written
