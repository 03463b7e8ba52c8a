"""Helpers of the trackers that need a package."""

import re
from importlib import import_module
from typing import Any

from taskloom.core import TaskloomError


def load_package(extra: str, module: str = "") -> Any:
    """Import a package that an extra of ours installs; ``TaskloomError`` with the command if it is missing."""
    try:
        return import_module(module or extra)
    except ImportError as error:
        message = f"it needs the package {extra} ({error}); `pip install 'taskloom[{extra}]'` installs it"
        raise TaskloomError(message) from error


def plain_name(text: str, also: str = "") -> str:
    """A name without characters that a folder or a project must not have.

    >>> plain_name("runs/sum [lr=0.1], seed 3"), plain_name("loss/para+sst", also="/")
    ('runs-sum-lr-0.1-seed-3', 'loss/para-sst')
    """
    return re.sub(rf"[^\w.{re.escape(also)}-]+", "-", text).strip("-") or "-"
