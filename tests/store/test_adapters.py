"""Each adapter is a store: the conformance suite on memory, a folder and a real S3 service."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio import Minio
from minio.error import S3Error

from syncline.clock import ManualClock
from syncline.store.local import LocalStore
from syncline.store.memory import MemoryStore
from syncline.store.s3 import S3Store
from syncline.store.s3_location import S3Credentials, S3Location
from syncline.testing.seaweed import BUCKET, Seaweed
from syncline.testing.store_conformance import StoreConformance, StoreUnderTest


class TestMemory(StoreConformance):
    @pytest.fixture
    def under_test(self) -> StoreUnderTest:
        store = MemoryStore(ManualClock())

        def raw_get(key: str) -> bytes | None:
            stored = store._objects.get(key)  # pyright: ignore[reportPrivateUsage]
            return None if stored is None else stored.data

        return StoreUnderTest(store, raw_get, lambda key, data: void(store.put(key, data)))


class TestLocal(StoreConformance):
    @pytest.fixture
    def under_test(self, tmp_path: Path) -> StoreUnderTest:
        root = tmp_path / "store"

        def raw_get(key: str) -> bytes | None:
            return (root / key).read_bytes() if (root / key).is_file() else None

        def raw_set(key: str, data: bytes) -> None:
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(data)

        return StoreUnderTest(LocalStore(root, rng=random.Random(1)), raw_get, raw_set)


class TestS3(StoreConformance):
    race_rounds = 1
    # SeaweedFS 4.48: 2 to 8 of 8 racing completions of one key were told that they won.
    large_creates_are_atomic = False

    @pytest.fixture
    def under_test(self, seaweed: Seaweed, request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
        prefix = f"conformance/{random.Random(request.node.nodeid).getrandbits(64):016x}"
        location = S3Location.parse(seaweed.store_url(prefix), {})
        store = S3Store(location, S3Credentials.from_env(seaweed.environ))
        client = Minio(location.host, seaweed.access_key, seaweed.secret_key, secure=False, region="us-east-1")

        def raw_get(key: str) -> bytes | None:
            try:
                response = client.get_object(BUCKET, f"{prefix}/{key}")
            except S3Error as error:
                assert "NoSuchKey" == error.code
                return None
            with response:
                data = response.read()
            response.release_conn()
            return data

        def raw_set(key: str, data: bytes) -> None:
            client._put_object(BUCKET, f"{prefix}/{key}", data)  # pyright: ignore[reportPrivateUsage]

        yield StoreUnderTest(store, raw_get, raw_set)
        store.close()


def void(_: object) -> None:
    """Drop a result."""
