"""The real model, prepared once per machine; skipped, and said so, where its package is not installed."""

import pytest

from twophase.core.errors import ModelFolderError
from twophase_features.model_store.prepare import prepare_default_model


@pytest.fixture(scope="session")
def smollm2_folder():
    try:
        return prepare_default_model(progress=False)
    except ModelFolderError as error:
        if "not installed" not in str(error):
            raise
        pytest.skip(f"not run here: {error}")
