"""The arguments of `logosphere import`, without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from logosphere.cli.console import Arguments
from logosphere.errors import UserError
from logosphere.runs.settings import ImportConfig


@dataclass(frozen=True)
class Import(Arguments):
    """Import a published model as a run, which is measured, sampled, compared and trained further like any other.

    Safetensors and GGUF files are read, in the layouts of MDLM, BD3-LM, SEDD, Duo, UDLM, GIDD (DDiT), of LLaDA, Dream,
    SDAR, Fast-dLLM and others (Llama, Qwen), and of DiffuGPT (GPT-2). Every tensor must be used and every parameter
    filled, or nothing is imported.
    """

    source: Annotated[str, tyro.conf.Positional]
    """A folder with config.json and safetensors files, a .gguf file, or hf:OWNER/NAME[@REVISION]."""
    out: Path | None = None
    """Folder of the run; runs/NAME unless set."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights; auto: that of the files."""
    tokenizer: str | None = None
    """A tokenizer.json or a folder with one, for checkpoints without; without any, texts are token numbers."""
    dry_run: bool = False
    """Print parameters, memory, disk and conventions; download and read no weights, and write nothing."""
    system: str | None = None
    """Import it as this system, such as mdlm, bd3lm or ar, where its configuration does not settle that."""
    mask_id: int | None = None
    """The row of the table that is the mask."""
    shift: bool = False
    """The output at position i - 1 answers position i, as in models that began as autoregressive ones."""
    no_shift: bool = False
    """The output at position i answers position i."""
    block: int | None = None
    """Tokens of a block, for bd3lm."""
    length: int | None = None
    """Tokens of a sequence; that of the configuration unless set."""
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        if self.shift and self.no_shift:
            raise UserError("--shift and --no-shift contradict each other; leave one out.")
        for name in ("block", "length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, not {value}.")

    @property
    def config(self) -> ImportConfig:
        """What is imported in another way than the checkpoint says."""
        shift = True if self.shift else False if self.no_shift else None
        return ImportConfig(self.dtype, self.tokenizer, self.mask_id, shift, self.length, self.block, self.system)
