from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
