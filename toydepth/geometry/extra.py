"""What language models need beside toydepth itself: the extra `llm`."""

from __future__ import annotations

from ..fields import ConfigError


def lacking(error: ImportError) -> ConfigError:
    """The one line that says what is not installed."""
    return ConfigError(f"language models need {error.name or error}: pip install 'toydepth[llm]'")
