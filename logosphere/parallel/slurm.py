"""A batch script for Slurm that survives its time limit: it saves, asks to be queued again, and resumes."""

import shlex
from dataclasses import dataclass

from logosphere.errors import UserError


@dataclass(frozen=True)
class Job:
    """What is asked of the cluster."""

    nodes: int = 1
    """Machines."""
    gpus: int = 8
    """GPUs on each of them, with a process each; 0 for processors only."""
    hours: float = 24.0
    """Time limit; the job is queued again until the training is done."""
    cpus: int = 8
    """Processor cores for each process."""
    partition: str = ""
    """Partition of the cluster, if it needs one."""
    warning: int = 180
    """Seconds before the limit at which the run is saved."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 0 or self.cpus < 1:
            raise UserError("A job needs at least 1 node, 1 core and no negative number of GPUs.")
        if self.hours <= 0 or self.warning < 30:
            raise UserError("The time limit must be above 0 hours and the warning at least 30 seconds.")
        if any(character.isspace() for character in self.partition):
            raise UserError(f"'{self.partition}' is no name of a partition.")


def batch_script(job: Job, out: str, words: list[str]) -> str:
    """The script; `words` are those of `logosphere train`, whose run is in the folder `out`."""
    processes = max(1, job.gpus)
    minutes = max(1, round(60 * job.hours))
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_plain(out)}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={processes * job.cpus}",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        *([f"#SBATCH --partition={job.partition}"] if job.partition else []),
        f"#SBATCH --time={minutes // 60:02d}:{minutes % 60:02d}:00",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{job.warning}",
    ]
    return "\n".join(head) + BODY.format(
        out=shlex.quote(out), words=shlex.join(words), processes=processes, threads=job.cpus,
        patience=job.warning - 10,
    )  # fmt: skip


BODY = """
set -uo pipefail

run={out}
resume=""
if [ -e "$run/recipe.json" ]; then resume="--resume"; fi
export OMP_NUM_THREADS={threads}
# torchrun kills after half a minute otherwise, which a large checkpoint may need more than.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={patience}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Shortly before the limit: the processes save and end, and the job goes back into the queue.
asked=0
trap 'asked=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {processes} \\
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \\
    -m logosphere train {words} --out "$run" $resume &
job=$!
wait "$job"; code=$?
# A trapped signal ends the first wait; the second one waits for the processes.
if [ "$asked" = 1 ]; then
    wait "$job"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
"""


def _plain(text: str) -> str:
    """Letters that a directive can hold."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in text)
