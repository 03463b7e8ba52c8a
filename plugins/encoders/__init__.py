"""Built-in encoders."""

from taskloom.core import Encoder, hookimpl
from taskloom.plugins.encoders.minbert import MinBert


@hookimpl
def taskloom_encoders() -> list[type[Encoder]]:
    return [MinBert]
