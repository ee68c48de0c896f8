"""Real stores that the tests of this folder share: one SeaweedFS and one rclone for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from syncline.testing.rclone import Rclone, start_rclone
from syncline.testing.seaweed import Seaweed, start_seaweed

pytest.register_assert_rewrite("syncline.testing.store_conformance")


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    service = start_seaweed(tmp_path_factory.mktemp("seaweed"))
    yield service
    service.stop()


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rclone]:
    service = start_rclone(tmp_path_factory.mktemp("rclone"))
    yield service
    service.stop()
