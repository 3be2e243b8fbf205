"""Characters and bytes per token of a text, in which bits of models with different tokenizers can be compared."""

from logosphere.data.corpus import Corpus, Examples, StreamedSplit, count_scored_tokens

TEXT_UNITS = ("character", "byte")


def units_per_token(unit: str, corpus: Corpus, split: str, length: int) -> float:
    """Characters or bytes per scored token; of separate texts, those that fit into the model.

    A tokenizer that is not lossless, such as WordPiece, does not preserve their lengths; then all texts count.
    """
    part, tokenizer = corpus.split(split), corpus.tokenizer
    if unit in ("token", tokenizer.unit):
        return 1.0
    whole = {"character": corpus.characters, "byte": corpus.bytes}[unit][split]

    def count(examples: Examples) -> int:
        texts = [tokenizer.decode(sequence) for sequence in examples.sequences]
        return sum(len(text) if unit == "character" else len(text.encode()) for text in texts)

    if isinstance(part, Examples) and count(part) == whole:
        part = part.filter_by_length(length)
        whole = count(part)
    return whole / count_scored_tokens(part, length)


def known_units(corpus: Corpus, split: str, length: int) -> dict[str, float]:
    """How many of each unit a scored token of a split has; characters and bytes only where the data are text."""
    part, unit = corpus.split(split), corpus.tokenizer.unit
    if isinstance(part, StreamedSplit):
        return {"token": 1.0}
    if unit == "dimension":
        return {"token": 1.0, unit: 1.0}
    return {"token": 1.0} | {text: units_per_token(text, corpus, split, length) for text in TEXT_UNITS}
