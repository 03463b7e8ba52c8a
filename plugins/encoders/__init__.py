"""Built-in encoders."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.encoders.huggingface import HuggingFace
from taskloom.plugins.encoders.minbert import MinBert


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [MinBert, HuggingFace]
