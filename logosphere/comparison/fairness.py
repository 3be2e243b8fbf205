"""What may stand beside what: refusals, each with its reason, before any time is spent."""

from pathlib import Path

from logosphere.errors import UserError
from logosphere.pretrained import resolve_folder
from logosphere.runs.folder import RunFolder
from logosphere.weights import RECIPE, WEIGHTS


def opened(folder: Path) -> RunFolder:
    """A run that can be compared: there, saved, and not being written."""
    name, folder = folder, resolve_folder(folder)
    if folder.is_dir() and not any(folder.iterdir()):
        raise UserError(
            f"{folder} is empty; name the folder of a run, or train one with: logosphere train --out {folder}"
        )
    if folder.is_dir() and not (folder / RECIPE).exists():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RECIPE}"))
        hint = f" The runs in it are: {', '.join(inside)}." if inside else ""
        raise UserError(f"{folder} is not the folder of a run: {RECIPE} is missing.{hint}")
    run = RunFolder(name)
    try:
        if (folder / ".lock").exists():
            with run.lock():
                pass
    except UserError:
        raise UserError(f"{folder} is still being trained; wait for it or stop it before comparing.") from None
    if not (folder / WEIGHTS).exists():
        raise UserError(f"Nothing has been saved in {folder} yet; go on with: logosphere train --out {folder} --resume")
    return run


def check_alike(runs: list[RunFolder]) -> None:
    """All runs must have the same text, tokenizer and length."""
    first = runs[0]
    for other in runs[1:]:
        one, two = first.content.get("corpus", {}), other.content.get("corpus", {})
        for what, a, b in (
            ("tokenizer", str(one.get("tokenizer"))[:12], str(two.get("tokenizer"))[:12]),
            ("text", _text(one), _text(two)),
            ("length", first.recipe.length, other.recipe.length),
        ):
            if a != b:
                raise UserError(
                    f"{first.path} and {other.path} differ in {what} ({a} and {b}), so they cannot be compared; "
                    f"train both with the same {what}."
                )


def _text(corpus: dict[str, object]) -> str:
    return f"{corpus.get('name')} {str(corpus.get('sha256'))[:12]}"
