"""The bundled checkpoints have the checksums of SHA256SUMS, which are compared on load and can be signed."""

import shutil
import subprocess
from pathlib import Path

import pytest
from sign_weights import PACKAGE, check_sums, sign, verify, write_sums

import logosphere as ls
from logosphere import pretrained
from logosphere.errors import UserError
from logosphere.pretrained.checksums import SUMS, read_sums

SMALLEST = "ar"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one bundled checkpoint and its checksums, in place of the package."""
    folder = tmp_path / "package"
    shutil.copytree(PACKAGE / SMALLEST, folder / SMALLEST)
    (folder / SUMS).write_bytes((PACKAGE / SUMS).read_bytes())
    monkeypatch.setattr(pretrained, "__file__", str(folder / "__init__.py"))
    return folder


def test_all_bundled_files_have_their_checksums() -> None:
    """If this fails after a checkpoint was replaced: python tools/sign_weights.py write."""
    assert check_sums() == 5 * len(pretrained.list_pretrained())


@pytest.mark.parametrize("name", ["model.safetensors", "recipe.json", "tokenizer.json", "record.json", "card.md"])
def test_a_flipped_bit_of_a_bundled_file_is_found(name: str, package: Path) -> None:
    ls.load(f"pretrained:{SMALLEST}")
    path = package / SMALLEST / name
    flip(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match="is not the file that was bundled|is damaged"):
        ls.load(f"pretrained:{SMALLEST}")


def test_missing_files_and_checksums_are_named(package: Path) -> None:
    (package / SMALLEST / "card.md").unlink()
    with pytest.raises(UserError, match=r"card\.md is missing"):
        ls.load(f"pretrained:{SMALLEST}")
    for text in ("", "x\n", f"{'0' * 64}  other/model.safetensors\n", f"{'0' * 63}  {SMALLEST}/model.safetensors\n"):
        (package / SUMS).write_text(text)
        with pytest.raises(UserError, match="install the package anew"):
            ls.load(f"pretrained:{SMALLEST}")
    (package / SUMS).unlink()
    with pytest.raises(UserError, match="is missing or damaged"):
        ls.load(f"pretrained:{SMALLEST}")


def test_a_file_without_a_checksum_is_named(package: Path) -> None:
    assert write_sums(package) == package / SUMS
    assert check_sums(package) == 5 == len(read_sums(package))
    (package / SMALLEST / "more.txt").write_text("x")
    with pytest.raises(UserError, match="does not name ar/more.txt"):
        check_sums(package)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen signs")
def test_only_the_signature_of_an_allowed_signer_is_valid(package: Path, tmp_path: Path) -> None:
    write_sums(package)
    for name in ("one", "other"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    signers = tmp_path / "signers"
    signers.write_text(f'one namespaces="logosphere-weights" {(tmp_path / "one.pub").read_text()}')
    sign(tmp_path / "other", package)
    with pytest.raises(UserError, match="verify failed"):
        verify(signers, "one", package)
    assert sign(tmp_path / "one", package) == package / f"{SUMS}.sig"
    assert verify(signers, "one", package) == 5
    with pytest.raises(UserError, match="verify failed"):
        verify(signers, "other", package)
    content = (package / SUMS).read_bytes()
    flip(package / SUMS, 3)
    with pytest.raises(UserError, match="verify failed"):
        verify(signers, "one", package)
    (package / SUMS).write_bytes(content)
    flip(package / SMALLEST / "model.safetensors", 1000)
    with pytest.raises(UserError, match="is not the file that was bundled"):
        verify(signers, "one", package)
