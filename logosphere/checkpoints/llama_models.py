"""What configurations of Llama-type checkpoints do not say: the mask, the shift, the attention, the blocks.

Read in the official code of each model; DreamReasoner and the block-wise models of Tiny-A2D are told from others of the
same model_type by a block size in the configuration or by the name they are imported by.
"""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conventions:
    """The conventions of one or several published models, in the order in which they are looked up."""

    name: str
    models: tuple[str, ...]
    types: tuple[str, ...]
    """model_type or class (architectures) of config.json, in small letters."""
    words: tuple[str, ...] = ()
    """Parts of the name that it is imported by, one of which is needed; empty: any name."""
    needs_block: bool = False
    """Whether a block size in the configuration settles it as well as the name."""
    system: str = "mdlm"
    mask_id: int | None = None
    shift: bool = False
    starts_with_bos: bool = False
    """Whether every text of the training began with bos."""
    attention: str = "full"
    block: int | None = None
    length: int = 4096
    """Positions of the model at most, where the configuration names more than it was trained with or than is useful."""
    special: dict[str, int] = field(default_factory=dict)
    rotary_base: float = 10_000.0
    eps: float = 1e-6
    """This and the base of the rotation are assumed, with a remark, where the configuration leaves them out."""
    remarks: tuple[str, ...] = ()


_QWEN = {"eot": 151645}
_AR = "ar"

CONVENTIONS = (
    Conventions(
        "LLaDA",
        ("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"),
        ("llada", "lladamodellm"),
        mask_id=126336,
        starts_with_bos=True,
        special={"eot": 126348},
        rotary_base=500_000.0,
        eps=1e-5,
        remarks=("Prompts begin with the start symbol, as in training; its id is that of tokenizer_config.json.",),
    ),
    Conventions(
        "iLLaDA",
        ("GSAI-ML/iLLaDA-8B-Base", "GSAI-ML/iLLaDA-8B-Instruct"),
        ("illada", "illadaforcausallm", "illadamodellm"),
        mask_id=5,
        length=8192,
        remarks=("The mask of iLLaDA is id 5, which neither its configuration nor its tokenizer names.",),
    ),
    Conventions(
        "DreamReasoner",
        ("Dream-org/DreamReasoner-8B",),
        ("dream", "dreammodel"),
        words=("reasoner",),
        needs_block=True,
        system="bd3lm",
        mask_id=151669,
        attention="blocks",
        block=32,
        special=_QWEN,
        rotary_base=1e6,
        remarks=("This model generates in blocks without a shift, unlike Dream, which has the same model_type.",),
    ),
    Conventions(
        "Dream",
        (
            "Dream-org/Dream-v0-Base-7B",
            "Dream-org/Dream-v0-Instruct-7B",
            "Dream-org/Dream-Coder-v0-Instruct-7B",
            "apple/DiffuCoder-7B-Instruct",
        ),
        ("dream", "dreammodel"),
        mask_id=151666,
        shift=True,
        length=2048,
        special=_QWEN,
        rotary_base=1e6,
    ),
    Conventions(
        "Tiny-A2D in blocks",
        (
            "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
            "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1",
        ),
        ("a2d-qwen3", "a2d-qwen2"),
        words=("bd3lm",),
        needs_block=True,
        system="bd3lm",
        attention="blocks",
        block=32,
        special=_QWEN,
        rotary_base=1e6,
    ),
    Conventions(
        "Tiny-A2D",
        (
            "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
            "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
        ),
        ("a2d-qwen3", "a2d-qwen2"),
        special=_QWEN,
        rotary_base=1e6,
    ),
    Conventions(
        "SDAR",
        ("JetLM/SDAR-1.7B-Chat", "JetLM/SDAR-4B-Chat", "JetLM/SDAR-8B-Chat"),
        ("sdar", "sdarforcausallm"),
        system="bd3lm",
        mask_id=151669,
        attention="blocks",
        block=4,
        special=_QWEN,
        rotary_base=1e6,
    ),
    Conventions(
        "Fast-dLLM v2",
        ("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "Efficient-Large-Model/Fast_dLLM_v2_7B"),
        ("fast_dllm_qwen", "fast_dllm_qwenforcausallm"),
        system="bd3lm",
        mask_id=151665,
        shift=True,
        attention="blocks",
        block=32,
        special=_QWEN,
        rotary_base=1e6,
        remarks=(
            "The first token of a block is predicted at the last position of the finished block before it, and every "
            "other token at the position before it in its own block.",
        ),
    ),
    Conventions(
        "WeDLM",
        ("tencent/WeDLM-8B-Base", "tencent/WeDLM-8B-Instruct"),
        ("wedlm", "wedlmforcausallm"),
        system=_AR,
        attention="causal",
        special=_QWEN,
        rotary_base=1e6,
        remarks=(
            "WeDLM is loaded as a causal model, whose weights it has bit for bit; its parallel decoding, which "
            "reorders positions, is not available.",
        ),
    ),
    Conventions(
        "DiffuLLaMA",
        ("diffusionfamily/diffullama",),
        ("llama", "llamaforcausallm"),
        words=("diffullama",),
        mask_id=811,
        shift=True,
        starts_with_bos=True,
        special={"pad": 30399, "sep": 4936},
        length=2048,
        eps=1e-5,
        remarks=(
            "The mask of DiffuLLaMA is an ordinary token (id 811), which therefore cannot be predicted: texts that "
            "contain it have no finite bound.",
        ),
    ),
    Conventions(
        "Open-dCoder",
        ("fredzzp/open-dcoder-0.5B",),
        ("qwen2", "qwen2forcausallm"),
        words=("open-dcoder", "open_dcoder", "opendcoder"),
        shift=True,
        special=_QWEN,
        length=2048,
        rotary_base=1e6,
    ),
    Conventions(
        "Llama",
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("llama", "llamaforcausallm"),
        system=_AR,
        attention="causal",
    ),
    Conventions(
        "Qwen",
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B-Base"),
        ("qwen2", "qwen3", "qwen2forcausallm", "qwen3forcausallm"),
        system=_AR,
        attention="causal",
        rotary_base=1e6,
    ),
)

A2D_MASKS = {"a2d-qwen3": 151669, "a2d-qwen2": 151665}
"""The mask is the first id after those of the tokenizer that each model began with."""


def find_conventions(kinds: Collection[str], source: str, block: int | None) -> Conventions | None:
    """Those of a checkpoint, by its kinds, a block size in its configuration, and the name it is imported by."""
    name = source.lower()
    for one in CONVENTIONS:
        if not any(kind in one.types for kind in kinds):
            continue
        if not one.words or any(word in name for word in one.words) or (one.needs_block and block is not None):
            return one
    return None
