"""The pretend device is as strict as a GPU: each of its laws (pretend_laws.py) is checked in its process."""

import ast
import shutil

import pretend_client
import pytest
from pretend_client import HERE, Device, library


def laws() -> list[str]:
    """Names of the laws, read from the source: the module itself can only be imported on the device."""
    found = ast.parse((HERE / "pretend_laws.py").read_text()).body
    plain = [node for node in found if isinstance(node, ast.FunctionDef) and not (node.args.args or node.args.vararg)]
    return [node.name for node in plain]


@pytest.mark.parametrize("law", laws())
def test_the_device_is_strict(law: str, device: Device) -> None:
    device.run(law)


def test_without_a_compiler_tests_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(pretend_client.torch.version, "cuda", None)
    with pytest.raises(pytest.skip.Exception, match="no C.. compiler"):
        library()


@pytest.mark.slow
def test_a_process_that_dies_is_reported_and_started_again(device: Device) -> None:
    with pytest.raises(pytest.fail.Exception, match="ended or fell silent"):
        device.run("die")
    device.run("views_share_their_memory")


def test_an_error_in_a_job_fails_its_test(device: Device) -> None:
    with pytest.raises(pytest.fail.Exception, match="There is no system"):
        device.run("train", system="none", preset="default")
