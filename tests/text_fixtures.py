"""Small texts shared by several test files."""

from pathlib import Path

from logosphere.data.corpus import Corpus

PROSE = "".join(f"Line {number}: the quick brown fox\njumps over the lazy dog.\n" for number in range(60))


def write_file(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def decode_splits(corpus: Corpus) -> list[str]:
    return [corpus.tokenizer.decode(ids) for ids in (corpus.train, corpus.valid, corpus.test)]


def unfinished_files(cache: Path) -> list[Path]:
    """Temporary files of unfinished writes."""
    return [path for path in cache.rglob("*") if path.name.startswith(".")]
