"""The pretend device is as strict as a GPU: each check of pretend_checks.py runs in its process."""

import ast
import shutil

import pretend_client
import pytest
from pretend_client import HERE, Device, library


def checks() -> list[str]:
    """Names of the checks, parsed from the source, since the module can only be imported in the device process."""
    found = ast.parse((HERE / "pretend_checks.py").read_text()).body
    plain = [node for node in found if isinstance(node, ast.FunctionDef) and not (node.args.args or node.args.vararg)]
    return [node.name for node in plain]


@pytest.mark.parametrize("check", checks())
def test_the_device_is_strict(check: str, device: Device) -> None:
    device.run(check)


def test_without_a_compiler_tests_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(pretend_client.torch.version, "cuda", None)
    with pytest.raises(pytest.skip.Exception, match="no C.. compiler"):
        library()


@pytest.mark.slow
def test_a_dead_process_is_reported_and_restarted(device: Device) -> None:
    with pytest.raises(pytest.fail.Exception, match="ended or did not reply"):
        device.run("die")
    device.run("views_share_their_memory")


def test_an_error_in_a_job_fails_its_test(device: Device) -> None:
    with pytest.raises(pytest.fail.Exception, match="There is no system"):
        device.run("train", system="none", preset="default")
