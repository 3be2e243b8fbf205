"""Cost and gain of --compile: seconds of compilation, ratio of step times, and steps after which it pays.

    python benchmarks/compile.py [SYSTEM…]            # default: mdlm and ar; float32 and bfloat16

Each measurement runs in a process of its own with one thread: the first finds no compiled code (cold; neither torch's
precompiled headers), the second the code of the first (warm). Compilation is the first compiled step less a later one,
in CPU seconds of the process and of the compilers that it starts.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import torch
from harness import measure_paired_ratio, print_table

import logosphere as ls
from logosphere.networks.compilation import compile_blocks
from logosphere.runs.create import stacks_of_blocks
from logosphere.runs.recipes import recipe
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

VOCABULARY, ROUNDS = 27, 25


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(system: str, precision: str) -> dict[str, float]:
    """Return the seconds of compilation and the paired ratio of compiled to eager steps, in this process."""
    chosen = recipe("text8-tiny")
    tokens = torch.randint(VOCABULARY, (chosen.batch, chosen.length), generator=torch.Generator().manual_seed(0))
    trainers = []
    for _ in range(2):
        torch.manual_seed(0)
        model = ls.build(system, vocab_size=VOCABULARY, length=chosen.length, **vars(chosen.network))
        trainers.append(Trainer(model, ema=chosen.ema, precision=precision))
    eager, compiled = trainers

    def step(trainer: Trainer) -> None:
        trainer.train_step(Batch.of(tokens, first=trainer.step * chosen.batch), 0.0)

    step(eager)  # starts the thread pool and the allocator
    cpu, wall = cpu_seconds(), time.perf_counter()
    for stack in stacks_of_blocks(compiled.model):
        compile_blocks(stack.blocks)
    step(compiled)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    paired = measure_paired_ratio(lambda: step(compiled), lambda: step(eager), ROUNDS)
    compile_cpu = cpu - paired["seconds"]
    saved = paired["bare_seconds"] * (1 - paired["ratio"])
    return {
        "compile CPU s": compile_cpu, "compile wall s": wall - paired["seconds"],
        "eager step s": paired["bare_seconds"],
        "ratio": paired["ratio"], "quartile 1": paired["ratio_quartile_1"], "quartile 3": paired["ratio_quartile_3"],
        "break-even steps": compile_cpu / saved if saved > 0 else float("inf"),
    }  # fmt: skip


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(measure(*sys.argv[-2:])))
        return
    rows = {}
    for system in sys.argv[1:] or ["mdlm", "ar"]:
        for precision in ("float32", "bfloat16"):
            with tempfile.TemporaryDirectory() as folder:
                # one thread: workers that outlive the measurement would not be counted
                places = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/code", "TMPDIR": folder}
                environment = os.environ | places | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
                for state in ("cold", "warm"):
                    argv = [sys.executable, __file__, "--one", system, precision]
                    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                    rows[f"{system} {precision} {state}"] = json.loads(done.stdout.splitlines()[-1])
    print_table("compiled / eager training step, text8-tiny", rows)


if __name__ == "__main__":
    main()
