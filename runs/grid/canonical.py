"""One text, and one short name, for one JSON value."""

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """One text for one value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """A short name for a JSON value: 20 hex digits of its SHA-256."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:20]
