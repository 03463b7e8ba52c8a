"""Tensors that say they are on the pretend device."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

#: What runs an operator.
Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class GPUTensor(Tensor):
    """A tensor that says it is on ``gpu:0``; ``plain`` holds its numbers."""

    plain: Tensor
    run: Run | None = None  # set while a device is there
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, plain: Tensor) -> "GPUTensor":
        form: dict[str, Any] = {"dtype": plain.dtype, "layout": plain.layout, "device": torch.device("gpu:0")}
        if plain.layout == torch.strided:
            form.update(strides=plain.stride(), storage_offset=plain.storage_offset())
        made: GPUTensor = Tensor._make_wrapper_subclass(cls, plain.size(), **form)
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if GPUTensor.run is None:
            raise RuntimeError(f"{func} on a tensor of a PretendGPU that has been left")
        return GPUTensor.run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """The numbers, which are copied to the host."""
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused, as by CUDA's tensors."""
        raise TypeError(
            "can't convert gpu:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def pin_memory(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: only the host's memory can be pinned."""
        raise RuntimeError("cannot pin a tensor on gpu:0; only dense CPU tensors can be pinned")

    def data_ptr(self) -> int:
        """Where its numbers are: the same for tensors that share them."""
        return self.plain.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """What holds its numbers: safetensors looks there for tensors that share them."""
        return self.plain.untyped_storage()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.plain!r} on gpu:0"
