"""logosphere data"""

from logosphere.cli.arguments import Data
from logosphere.cli.console import DISPLAY, print_json
from logosphere.data.sources import CORPORA, DATASETS


def run(arguments: Data, argv: list[str]) -> int:
    if arguments.action == "list":
        known = CORPORA | DATASETS
        if arguments.json:
            print_json({"corpora": known})
        else:
            print("\n".join(f"{name:<{max(map(len, known))}}  {line}" for name, line in known.items()))
        return 0
    from logosphere.data.corpus import count_tokens  # these load torch, which a list does not need
    from logosphere.runs.train import open_with_display

    corpus = open_with_display(arguments.name, arguments.tokenizer, DISPLAY)
    sizes = {split: count_tokens(corpus.split(split)) for split in ("train", "valid", "test")}
    if arguments.json:
        print_json({"name": corpus.name, "tokens": sizes, "vocabulary": corpus.tokenizer.size, "sha256": corpus.sha256})
    else:
        counts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        print(f"{corpus.name}: {corpus.tokenizer.size} symbols; tokens: {counts}")
    return 0
