"""State as a checkpoint holds it: tensors in safetensors, and nothing that would have to be unpickled."""

import json
from typing import Any

from safetensors.torch import load, save
from torch import Tensor, nn

from taskloom.core.testing.law import require


def written(module: nn.Module) -> dict[str, Tensor]:
    """A module's state after it went through the bytes of a checkpoint."""
    state = module.state_dict()
    for name, value in state.items():
        words = f"state {name!r} should be a tensor (a buffer), so that it can be saved. Found {type(value).__name__}."
        require(isinstance(value, Tensor), words)
    return load(save({name: value.detach().clone().contiguous() for name, value in state.items()}))


def require_no_graph(module: nn.Module) -> None:
    """No buffer keeps the way back through the step that changed it: there is none from the next step."""
    kept = [name for name, buffer in module.named_buffers() if buffer.requires_grad]
    words = f"after a step buffer {', '.join(map(repr, kept))} still has the graph of it"
    require(not kept, f"{words}, and the next step cannot go back through it; detach what goes into a buffer")


def through_json(state: Any) -> Any:
    """A state after it was written as JSON."""
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"state should be JSON values. Found {error}.") from None
