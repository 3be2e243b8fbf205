"""One process of the pretend device for all tests of a session."""

from collections.abc import Iterator

import pytest
from pretend_client import Device, library


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    device = Device(library(), tmp_path_factory.mktemp("accelerator"))
    yield device
    device.stop()
