"""What a user wants text to be written for: a label or a source, by the words of the command line."""

from typing import TYPE_CHECKING

from logosphere.errors import UserError, nearest

if TYPE_CHECKING:
    from logosphere.runs.folder import RunFolder
    from logosphere.types import Condition


def condition_of(folder: "RunFolder", label: str, source: str, n: int) -> "Condition | None":
    """The condition of n texts, or None when nothing is asked for."""
    if not label and not source:
        return None
    import torch

    from logosphere.types import Condition

    labels = sources = None
    if label:
        labels = torch.full((n,), _number(label, folder))
    if source:
        sources = torch.from_numpy(folder.tokenizer.encode(source)).expand(n, -1)
    return Condition.of(labels=labels, source=sources)


def _number(label: str, folder: "RunFolder") -> int:
    names = folder.labels
    if not names:
        raise UserError(f"The model in {folder.path} was trained without labels; leave out --label.")
    if label not in names:
        raise UserError(f"There is no label '{label}'.{nearest(label, names)}")
    return names.index(label)
