"""A board as Markdown."""

from logosphere.reports import tables
from logosphere.reports.board import Board
from logosphere.reports.tables import Table


def markdown(board: Board) -> str:
    """The tables, one text of each system, and where everything comes from."""
    parts = [
        f"# {board.title}",
        f"{board.data}: {board.sequences:,} held-out sequences of {board.length}, {board.draws} draws each; "
        f"budget {board.budget or 'not the same for all'}; {board.created}.",
        "Kinds: = exact, ≤ a proven upper bound, ~ a surrogate that may lie on either side. "
        "Differences are paired over sequences.",
        "## Likelihood", _table(tables.likelihood(board)),
    ]  # fmt: skip
    if board.literature:
        parts += ["## Published figures", _table(tables.literature(board))]
    if any(entry.samplings for entry in board.entries):
        parts += ["## Samples", _table(tables.samples(board))]
        parts += ["\n".join(f"- {m.title}: {m.definition}." for m in board.measures)]
        parts += [f"**{entry.name}**\n\n{_block(entry.texts[0])}" for entry in board.entries if entry.texts]
    parts += ["## Costs", _table(tables.costs(board)), "## Trainings", _table(tables.trainings(board))]
    parts += [f"Command: `{' '.join(board.command)}`. Text sha256 {board.corpus_sha256}; tokenizer {board.tokenizer}."]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    heads = [f"{head} ({remark})" if remark else head for head, remark in table.heads]
    left = {0, *table.words}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, rule, *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _block(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
