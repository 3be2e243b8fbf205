"""Peak memory and time of importing a published checkpoint, relative to the size of its weights.

    python benchmarks/import_memory.py [MEGABYTES …]

A LLaDA-shaped folder of random bfloat16 weights in two shards is imported by `logosphere import` in a process of its
own. Its peak is sampled from the kernel's VmHWM and reset after the modules are imported, because those take memory
for any command; both figures are reported. Then the run is loaded and one sequence is measured, which maps all weights,
and the folder is opened by `ls.import_model`, which keeps them in memory. With several sizes the record `fit` splits
the peak above the base into a constant and a part that grows with the weights, by least squares.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import linear_regression
from typing import Any

import torch
from records import find_commit, print_experiment
from safetensors.torch import save_file

WIDTH, INNER, ROWS, LENGTH = 1024, 4096, 8192, 128
WAYS = ("import", "load and measure", "open in memory")
IMPORT = """
import json, sys, time
from contextlib import suppress
from pathlib import Path
import torch
from logosphere.runs.costs import reset_peak_memory
from logosphere.runs import import_checkpoint
from logosphere.systems import build
import logosphere as ls
import logosphere.processes.discrete.masked

def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

source, out, what = sys.argv[1:]
ls.keep_freed_memory()  # as the command line does
build("mdlm", vocab_size=4, length=4, width=8, depth=1, heads=1)
reset_peak_memory()
before, started = status("VmRSS"), time.perf_counter()
if what == "import":
    import_checkpoint.import_checkpoint(source, out)
else:
    model = ls.load(out) if what == "load and measure" else ls.import_model(source)
    model.nelbo(torch.zeros(1, model.length, dtype=torch.long), 0)
peak = status("VmHWM")
print(json.dumps({"base_bytes": before, "peak_bytes": peak, "seconds": round(time.perf_counter() - started, 2)}))
"""


def write_folder(folder: Path, size: int) -> int:
    """Write a checkpoint of about this many bytes; the bytes of its weights."""
    block_bytes = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER)
    depth = max(2, round((size - 4 * ROWS * WIDTH) / block_bytes))
    rng = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=rng) * 0.02).to(torch.bfloat16)

    prefix = "model.transformer"
    first, second = {f"{prefix}.wte.weight": draw(ROWS, WIDTH)}, {f"{prefix}.ff_out.weight": draw(ROWS, WIDTH)}
    second[f"{prefix}.ln_f.weight"] = torch.ones(WIDTH, dtype=torch.bfloat16)
    for i in range(depth):
        shard, block = (first, second)[2 * i >= depth], f"{prefix}.blocks.{i}"
        for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
            shard[f"{block}.{name}.weight"] = draw(WIDTH, WIDTH)
        for name in ("ff_proj", "up_proj"):
            shard[f"{block}.{name}.weight"] = draw(INNER, WIDTH)
        shard[f"{block}.ff_out.weight"] = draw(WIDTH, INNER)
        for name in ("attn_norm", "ff_norm"):
            shard[f"{block}.{name}.weight"] = torch.ones(WIDTH, dtype=torch.bfloat16)
    folder.mkdir()
    files = {f"model-0000{n + 1}-of-00002.safetensors": shard for n, shard in enumerate((first, second))}
    for file, shard in files.items():
        save_file(shard, folder / file)
    places = {name: file for file, shard in files.items() for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": WIDTH, "n_layers": depth, "n_heads": 16,
        "n_kv_heads": 16, "mlp_hidden_size": INNER, "embedding_size": ROWS, "vocab_size": ROWS,
        "max_sequence_length": LENGTH, "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms",
        "weight_tying": False, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "mask_token_id": ROWS - 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return sum(tensor.numel() * 2 for shard in files.values() for tensor in shard.values())


def measure(source: Path, out: Path, what: str) -> dict[str, Any]:
    """Import or load in a process of its own."""
    command = [sys.executable, "-c", IMPORT, str(source), str(out), what]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(found.splitlines()[-1])
    return result


def fit_line(records: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """The peak above the base as `constant_bytes` + `per_byte` × the bytes of the weights."""
    weights = [record["weights_bytes"] for record in records if record["what"] == what]
    peaks = [record["peak_bytes"] - record["base_bytes"] for record in records if record["what"] == what]
    slope, constant = linear_regression(weights, peaks)
    return {"what": f"fit of {what}", "constant_bytes": round(constant), "per_byte": round(slope, 4)}


def main() -> None:
    sizes = [int(size) * 10**6 for size in sys.argv[1:]] or [400 * 10**6]
    records: list[dict[str, Any]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            source, out = Path(place) / "source", Path(place) / "run"
            weights = write_folder(source, size)
            for what in WAYS:
                started = time.perf_counter()
                found = measure(source, out, what)
                above = found["peak_bytes"] - found["base_bytes"]
                records.append(
                    {"what": what, "weights_bytes": weights, **found, "above_base": round(above / weights, 3),
                     "whole": round(found["peak_bytes"] / weights, 3), "wall": round(time.perf_counter() - started, 1)}
                )  # fmt: skip
    if len(sizes) > 1:
        records += [fit_line(records, what) for what in WAYS]
    print_experiment(
        "import memory", records, commit=find_commit(), threads=torch.get_num_threads(), dtype="bfloat16", shards=2,
        command=f"python benchmarks/import_memory.py {' '.join(sys.argv[1:])}".strip(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
