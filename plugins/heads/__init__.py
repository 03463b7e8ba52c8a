"""The built-in heads."""

from taskloom.core import Head, hookimpl
from taskloom.plugins.heads.cosine import Cosine
from taskloom.plugins.heads.linear import Linear


@hookimpl
def taskloom_heads() -> list[type[Head]]:
    return [Cosine, Linear]
