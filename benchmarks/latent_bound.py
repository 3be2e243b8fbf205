"""The bound of a trained autoencoder at each end of the path, with a Gaussian prior in place of the diffusion.

    python benchmarks/latent_bound.py runs/latent-stage-one/captions-20/tencdm--seed-0 --data captions --out bound.json

For each log-SNR: nats per held-out token of reconstruction and of the rate (logosphere/evaluation/path_ends.py), their
sum, which is a bound in bits per token, and the rate of a denoiser that knows only the scale of features. The decoder
must have been trained on such noise: min_decode_logsnr at or below the lowest log-SNR.
"""

import argparse
import math
from pathlib import Path

import logosphere as ls
from logosphere.data.batches import eval_batches
from logosphere.data.tokenizer_registry import tokenizer_from_description
from logosphere.evaluation.path_ends import PathEnd, measure_path_ends
from logosphere.io import write_json
from logosphere.training.stages import read_autoencoder

ENDS = (3.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0)
TRAIN, HELD_OUT = 2048, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("autoencoder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = read_autoencoder(args.autoencoder)
    if found.tokenizer is None:
        raise SystemExit(f"The autoencoder in {args.autoencoder} has no tokenizer.")
    corpus = ls.open_corpus(args.data, tokenizer_from_description(found.tokenizer))
    length = int(found.content["length"])
    model = ls.build(found.system, vocab_size=corpus.tokenizer.size, length=length, width=found.options[
        "autoencoder_width"], heads=found.options["autoencoder_heads"], depth=1, **found.options)  # fmt: skip
    ls.load_autoencoder(model, args.autoencoder)
    train, held_out = (eval_batches(*part) for part in (
        (corpus.train, length, 32, TRAIN), (corpus.valid, length, 32, HELD_OUT)
    ))  # fmt: skip
    ends = measure_path_ends(model, train, held_out, ENDS, 0)
    print_table(ends)
    if args.out is not None:
        rows = [vars(end) | {"bits": end.total / math.log(2)} for end in ends]
        write_json(args.out, {"autoencoder": found.content["reached"], "data": args.data, "rows": rows})


def print_table(ends: list[PathEnd]) -> None:
    """Print the bound at each end of the path."""
    print("| log-SNR | tokens read | reconstruction, nats | rate, nats | bound, bits per token | rate of scale |")
    print("|---:|---:|---:|---:|---:|---:|")
    for end in ends:
        print(
            f"| {end.logsnr:g} | {end.accuracy:.1%} | {end.reconstruction:.2f} | {end.rate:.2f} | "
            f"≤ {end.total / math.log(2):.2f} | {end.white_rate:.1f} |"
        )


if __name__ == "__main__":
    main()
