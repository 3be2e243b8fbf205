"""Render the leaderboard from the JSON records in benchmarks/leaderboard/ and benchmarks/results/.

    python tools/leaderboard.py             # rewrite docs/results/leaderboard.html and the tables of two pages
    python tools/leaderboard.py --check     # write nothing; exit with 1 if one of them is stale

docs/leaderboard.md and docs/literature.md mark the places of tables with `<!-- leaderboard: NAME -->` and
`<!-- /leaderboard -->`; everything between the two lines is generated. Damaged records are left out and named.
"""

import argparse
import re
import sys
from pathlib import Path

from logosphere.report.comparison import load_all_published_results
from logosphere.report.experiment_rows import read_rows
from logosphere.report.leaderboard import Board, make_boards
from logosphere.report.leaderboard_page import render_board_markdown, render_leaderboard
from logosphere.report.literature import Pair, read_pairs, render_literature, summarise_literature
from logosphere.report.row_records import RowRecord

ROOT = Path(__file__).parent.parent
PLACES = ("benchmarks/leaderboard", "benchmarks/results")
PAGE = "docs/results/leaderboard.html"
TEXTS = ("docs/leaderboard.md", "docs/literature.md")
PAIRS = "benchmarks/literature.json"
BLOCK = re.compile(r"^<!-- leaderboard: (\S+) -->\n(.*?)^<!-- /leaderboard -->$", flags=re.DOTALL | re.MULTILINE)


def load(root: Path = ROOT) -> tuple[list[RowRecord], list[str]]:
    """All rows, and a sentence about each record that is damaged; places are named from the root of the repository."""
    rows: list[RowRecord] = []
    problems: list[str] = []
    for place in PLACES:
        if (root / place).exists():
            found, wrong = read_rows(root / place)
            rows, problems = rows + found, problems + wrong
    return rows, [problem.replace(f"{root}/", "") for problem in problems]


def render_tables(boards: list[Board]) -> str:
    """A Markdown table for each board of the test split."""
    parts = []
    for board in boards:
        if board.on_test:
            parts += [f"### {board.title}, {board.sequences:,} sequences\n", render_board_markdown(board)]
    return "\n".join(parts)


def render_all(root: Path = ROOT) -> dict[Path, str]:
    """The content of every generated file."""
    records, problems = load(root)
    boards, pairs = make_boards(records), read_pairs(root / PAIRS)
    files = {root / PAGE: render_leaderboard(boards, load_all_published_results(), problems)}
    for name in TEXTS:
        path = root / name
        files[path] = render_page(path.read_text(encoding="utf-8"), boards, pairs)
    return files


def render_page(text: str, boards: list[Board], pairs: list[Pair]) -> str:
    """A page with its marked tables generated anew."""

    def replaced(block: re.Match[str]) -> str:
        made = {
            "tables": lambda: render_tables(boards),
            "pairs": lambda: render_literature(pairs, boards),
            "summary": lambda: summarise_literature(pairs, boards),
        }
        if block[1] not in made:
            raise ValueError(f"there is no table {block[1]!r} of the leaderboard")
        return f"<!-- leaderboard: {block[1]} -->\n\n{made[block[1]]()}\n<!-- /leaderboard -->"

    return BLOCK.sub(replaced, text)


def find_stale(root: Path = ROOT) -> list[str]:
    """One sentence for each generated file that differs from its records."""
    return [
        f"{path.relative_to(root)} is stale; run: python tools/leaderboard.py"
        for path, content in render_all(root).items()
        if not path.exists() or path.read_text(encoding="utf-8") != content
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    given = parser.parse_args()
    for problem in load()[1]:
        print(problem, file=sys.stderr)
    if given.check:
        if problems := find_stale():
            sys.exit("\n".join(problems))
        return
    for path, content in render_all().items():
        path.write_text(content, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} ({len(content.encode()) / 1e3:,.0f} kB)")


if __name__ == "__main__":
    main()
