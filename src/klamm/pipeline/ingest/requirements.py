"""The libraries of the `ingest` extra, imported on first use; the pip line where one is missing."""

from importlib import import_module
from typing import Any, Final

from klamm.errors import ConfigError

_PIP_LINE: Final = "pip install 'klamm[ingest]'"


def need(module: str, purpose: str) -> Any:
    """Import a module of the extra, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {package}, which cannot be imported ({error}). "
            f"Install it with: {_PIP_LINE}"
        ) from None
