"""The version; `pyproject.toml` and `Cargo.toml` say the same, which a test checks."""

__version__ = "0.1.0"
