"""The allocators that the tests of the bookkeeping run on."""

import pytest

from tests.cache.plain import typed_cache


@pytest.fixture
def new_cache():
    return typed_cache
