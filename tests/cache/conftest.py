"""The allocators that the tests of the bookkeeping run on."""

import pytest

from tests.cache.plain import plain_manager_class, typed_cache


@pytest.fixture(params=["typed", "plain"])
def new_cache(request):
    return typed_cache if request.param == "typed" else plain_manager_class()
