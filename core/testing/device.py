"""An emulated GPU for tests: its tensors compute on the CPU and refuse what CUDA refuses.

    with PretendGPU() as gpu:  # torch.cuda.is_available(), and torch.device("cuda") is the emulated device
        train()
    gpu.kernels.total(), gpu.waits.most_common(5)

Emulated are

* errors: tensors of two devices in one operator, a generator of another device and ``numpy()`` raise as on CUDA;
* ``kernels``: operators that launch a kernel, counted by name and line. A call counts as one, also where CUDA splits a
  ``_foreach_*`` or ``_fused_*`` operator into several launches; copies count too;
* ``waits``: whatever makes the host wait for the device, counted by cause and line: ``item``, ``tolist``, copies that
  block or are not from pinned memory, masks as indices, ``nonzero``, ``unique`` and the like;
* autocast, memory-efficient attention (padded and packed), pinned memory and the state of generators.

Not emulated are time, memory, streams, graphs, several devices, the rounding of CUDA's kernels, and packed attention
with a bias or a causal mask.

It uses torch's PrivateUse1 backend, which from the first use on belongs to the whole process.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from taskloom.core.component import derive_seed

__all__ = ["GPUTensor", "PretendGPU"]

#: Called with each operator, its arguments as plain tensors, and the line that it comes from.
Watch = Callable[[Any, tuple[Any, ...], dict[str, Any], str], None]


class PretendGPU:
    """A context in which there is a GPU. ``watch`` is called with each operator on it: see :data:`Watch`."""

    def __init__(self, watch: Watch | None = None) -> None:
        _register()
        self.default = GPUGenerator("gpu")
        self._mode = _Dispatch(self.default, watch)
        self.kernels = self._mode.kernels  # launches by operator and line
        self.waits = self._mode.waits  # of the host, by cause and line
        self.device = torch.device("gpu:0")

    @staticmethod
    def possible() -> bool:
        """Whether this torch supports PrivateUse1 backends in Python, and no other backend has taken the name."""
        supported = hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend")
        return supported and torch._C._get_privateuse1_backend_name() in ("privateuseone", "gpu")

    def reset(self) -> None:
        """Set both counts to zero."""
        self.kernels.clear()
        self.waits.clear()

    def __enter__(self) -> "PretendGPU":
        self._stack = stack = ExitStack()
        default = self.default
        functions: dict[str, Any] = {
            "_lazy_init": lambda: None,
            "current_device": lambda: 0,
            "default_generators": (default,),
            "device_count": lambda: 1,
            "empty_cache": lambda: None,
            "get_rng_state": lambda *device: default.get_state(),
            "is_available": lambda: True,
            "is_bf16_supported": lambda *including: True,
            "is_initialized": lambda: True,
            "manual_seed_all": default.manual_seed,
            "max_memory_allocated": lambda *device: 0,
            "reset_peak_memory_stats": lambda *device: None,
            "set_rng_state": lambda state, *device: default.set_state(state),
            "synchronize": lambda *device: self._mode.wait("synchronize"),
        }
        vars(_backend).update(functions)
        stack.enter_context(patch.multiple(torch.cuda, **functions))
        stack.enter_context(patch.multiple(torch.Tensor, pin_memory=_pin, is_pinned=_is_pinned))  # in every thread
        stack.enter_context(patch.object(torch, "clear_autocast_cache", _clear_autocast_cache))
        stack.enter_context(patch.object(torch, "Generator", GPUGenerator))
        # In inference mode wrapped tensors have no views; without gradients the operators are the same.
        inference = patch.object(torch._C, "_InferenceMode", lambda on: torch.no_grad() if on else nullcontext())
        stack.enter_context(inference)
        stack.enter_context(patch.object(GPUTensor, "run", self._mode.run))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # a mode belongs to one thread
        future = torch.__future__
        stack.callback(future.set_swap_module_params_on_conversion, future.get_swap_module_params_on_conversion())
        future.set_swap_module_params_on_conversion(True)  # module.to() keeps its parameters
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(_Names())
        stack.enter_context(self._mode)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class _Names(TorchFunctionMode):
    """Replaces ``"cuda"`` by the emulated device in the arguments of every function of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: _renamed(argument) for key, argument in (kwargs or {}).items()}
        return func(*map(_renamed, args), **kwargs)


def _renamed(argument: Any) -> Any:
    return "gpu:0" if isinstance(argument, str) and argument in ("cuda", "cuda:0") else argument


# Registration, once per process


_HALVES = (torch.bfloat16, torch.float16)
#: ``torch.gpu``, the device module that torch expects of a backend; a :class:`PretendGPU` adds its functions.
_backend = SimpleNamespace(_is_in_bad_fork=lambda: False, get_amp_supported_dtype=lambda: list(_HALVES))
_libraries: list[Any] = []  # a registration ends with its library


def _register() -> None:
    """Register the backend with torch, on the first use in a process."""
    if not _libraries:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend("gpu", backend_module=_backend)
        _library("aten", "AutogradPrivateUse1").impl("scaled_dot_product_attention", _choose_attention)
        _library("_", "AutocastPrivateUse1").fallback(torch.library.fallthrough_kernel)
        _register_autocast(_library("aten", "AutocastPrivateUse1"))


def _library(namespace: str, key: str) -> Any:
    make: Any = torch.library.Library
    _libraries.append(make(namespace, "IMPL", key))
    return _libraries[-1]


# Tensors, pinned memory and generators


class GPUTensor(Tensor):
    """A tensor that reports the device ``gpu:0``; ``plain`` is the CPU tensor with its numbers."""

    plain: Tensor
    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None  # set while there is a device
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, plain: Tensor) -> "GPUTensor":
        layout: dict[str, Any] = {"dtype": plain.dtype, "layout": plain.layout, "device": torch.device("gpu:0")}
        if plain.layout == torch.strided:
            layout.update(strides=plain.stride(), storage_offset=plain.storage_offset())
        tensor: GPUTensor = Tensor._make_wrapper_subclass(cls, plain.size(), **layout)
        tensor.plain = plain
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if GPUTensor.run is None:
            raise RuntimeError(f"{func} on a tensor of a PretendGPU that has been left")
        return GPUTensor.run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """The numbers, copied to the host."""
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
        """The address of its numbers, the same for tensors that share them."""
        return self.plain.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage of its numbers, where safetensors looks for tensors that share them."""
        return self.plain.untyped_storage()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.plain!r} on gpu:0"


def _pin(tensor: Tensor, device: Any = None) -> Tensor:
    """A copy whose storage is marked as pinned."""
    pinned = tensor.clone()
    pinned.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return pinned


def _is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return hasattr(tensor.untyped_storage(), "pinned")


_CPUGenerator = torch.Generator
_gpu_generators: WeakValueDictionary[int, "GPUGenerator"] = WeakValueDictionary()


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Makes every generator an instance, also those from before ``torch.Generator`` was replaced."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _CPUGenerator)


class GPUGenerator(torch.Generator, metaclass=_AnyGenerator):
    """Replaces ``torch.Generator``; for another device it makes torch's own.

    As on CUDA its state is a seed and an offset: a draw depends on both alone and advances the offset, so any 16 bytes
    are a state.
    """

    seed_now: int
    offset: int

    def __new__(cls, device: torch.device | str = "cpu") -> Any:
        if torch.device(device).type != "gpu":
            return _CPUGenerator(torch.device(device))
        generator = super().__new__(cls)
        generator.seed_now, generator.offset = 67280421310721, 0  # torch's default seed
        _gpu_generators[generator._cdata] = generator  # type: ignore[attr-defined]
        return generator

    def __init__(self, device: torch.device | str = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The emulated device."""
        return torch.device("gpu:0")

    def manual_seed(self, seed: int) -> "GPUGenerator":
        """Set the seed, and the offset to 0."""
        self.seed_now, self.offset = seed % 2**63, 0
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self.seed_now

    def get_state(self) -> Tensor:
        """Seed and offset as 16 bytes, on the host."""
        return torch.tensor([self.seed_now, self.offset]).view(torch.uint8)

    def set_state(self, new_state: Tensor) -> "GPUGenerator":
        """Continue from a state."""
        if type(new_state) is not Tensor or new_state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != 16:
            raise RuntimeError("RNG state is wrong size")
        self.seed_now, self.offset = new_state.clone().view(torch.int64).tolist()
        return self

    def draw(self) -> tuple[int, int]:
        """The seed and the offset of one kernel's draws, which no other kernel shares."""
        self.offset += 4
        return self.seed_now, self.offset - 4

    def ready(self) -> _CPUGenerator:
        """Seed the underlying CPU generator for one kernel's draws."""
        super().manual_seed(_kernel_seed(*self.draw()))
        return self


def _kernel_seed(seed: int, offset: int) -> int:
    """The CPU generator's seed for the draws of one kernel."""
    return derive_seed(seed, "kernel", offset)


def _as_gpu_generator(generator: _CPUGenerator | None) -> GPUGenerator | None:
    """The emulated generator behind ``generator``: torch's dispatcher passes another Python object for it."""
    return None if generator is None else _gpu_generators.get(generator._cdata)  # type: ignore[attr-defined]


# Operators

#: Operators that launch no kernel, beside views.
_FREE = """
    _coalesced_ _dimI _dimV _has_compatible_shallow_copy_type _indices _local_scalar_dense _nnz _reshape_alias
    _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _unsafe_view _values
    alias dense_dim detach empty empty_like empty_strided indices is_coalesced is_pinned is_same_size lift_fresh
    new_empty new_empty_strided resize_ set_ sparse_coo_tensor sparse_dim values
"""
_LAUNCH_NOTHING = frozenset(_FREE.split())
#: Operators with a list of indices as their second argument.
_INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
#: Operators that accept a host scalar, beside pointwise ones, indexed ones and emulated kernels.
_TAKES_SCALAR = frozenset({"_fused_adamw_", "fill", "fill_", "masked_fill", "masked_fill_"})
#: Operators with a result that the host must know, such as a shape or a Python number → cause of the wait.
_WAITS = {
    "_coalesce": "coalesce",
    "_linalg_check_errors": "check of a decomposition",
    "_local_scalar_dense": "item, float or bool",
    "_unique": "unique",
    "_unique2": "unique",
    "bincount": "bincount",
    "equal": "equal",
    "masked_select": "masked_select",
    "nonzero": "nonzero",
    "unique_consecutive": "unique",
    "unique_dim": "unique",
}
_IGNORED_FILES = (str(Path(torch.__file__).parent), __file__)


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator while there is a device: checks it, counts it, and computes it on the CPU."""

    def __init__(self, default: GPUGenerator, watch: Watch | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.default, self.watch = default, watch
        self.kernels: Counter[tuple[str, str]] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()

    def wait(self, cause: str) -> None:
        """Count a wait of the host."""
        self.waits[cause, _calling_line()] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, on whichever device."""
        name = func._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_gpu = [tensor for tensor in tensors if isinstance(tensor, GPUTensor)]
        device = _result_device(name, args, kwargs, on_gpu)
        _check_generator(name, kwargs.get("generator"), device)
        if not on_gpu and device != "gpu":
            pinned = kwargs.pop("pin_memory", None)  # a CPU-only torch has no memory to pin
            output = func(*args, **kwargs)
            return _pin(output) if pinned else output
        _check_devices(func, name, args, tensors, device)
        for cause in _causes_of_waiting(name, args, kwargs, device):
            self.wait(cause)
        changes_shape = torch.Tag.inplace_view in func.tags  # squeeze_ and the like
        if name not in _LAUNCH_NOTHING and not func.is_view and not changes_shape:
            self.kernels[name, _calling_line()] += 1
        if changes_shape:
            _reshape_wrapper(func, args, kwargs)
        return self._compute(func, name, args, kwargs, tensors, device)

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor], device: str) -> Any:
        args, kwargs = tree_map_only(GPUTensor, lambda tensor: tensor.plain, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if self.watch:
            self.watch(func, args, kwargs, _calling_line())
        if name in _EMULATED:
            outputs = _EMULATED[name](self._call(func, args, kwargs))
        elif generator := _as_gpu_generator(kwargs.get("generator")):
            outputs = func(*args, **{**kwargs, "generator": generator.ready()})
        elif torch.Tag.nondeterministic_seeded in func.tags:
            with self._default_generator():
                outputs = func(*args, **kwargs)
        else:
            outputs = func(*args, **kwargs)
        inputs = {id(tensor.plain if isinstance(tensor, GPUTensor) else tensor): tensor for tensor in tensors}

        def wrap(output: Tensor) -> Tensor:
            # The integers of an emulated kernel, seed and offset of its draws, stay on the host.
            stays = device != "gpu" or (name in _EMULATED and output.dtype == torch.int64)
            return inputs[id(output)] if id(output) in inputs else output if stays else GPUTensor(output)

        return tree_map_only(Tensor, wrap, outputs)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The arguments of a kernel by the names in its schema, and the seed and offset of what it may draw."""
        arguments = {argument.name: argument.default_value for argument in func._schema.arguments}
        named = zip((argument.name for argument in func._schema.arguments), args, strict=False)
        call = SimpleNamespace(**{**arguments, **dict(named), **kwargs})
        if "philox_seed" not in arguments:
            call.philox_seed, call.philox_offset = self.default.draw()
        return call

    @contextmanager
    def _default_generator(self) -> Iterator[None]:
        """Let an operator without a generator draw from the device's default one."""
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(_kernel_seed(*self.default.draw()))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def _result_device(name: str, args: Any, kwargs: Any, on_gpu: list[GPUTensor]) -> str:
    if (device := kwargs.get("device")) is not None:
        return torch.device(device).type
    deciding = args[:1] if name == "copy_" or name in _INDEXED else on_gpu
    return "gpu" if any(isinstance(tensor, GPUTensor) for tensor in deciding) else "cpu"


def _reshape_wrapper(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Apply an operator that changes only a tensor's shape to the wrapper, too."""
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def _calling_line() -> str:
    """The innermost line outside of torch and of this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_IGNORED_FILES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _check_generator(name: str, generator: _CPUGenerator | None, device: str) -> None:
    if generator is not None and (actual := "gpu" if _as_gpu_generator(generator) else "cpu") != device:
        raise RuntimeError(f"Expected a '{device}' device type for generator but found '{actual}' ({name})")


def _check_devices(func: Any, name: str, args: Any, tensors: list[Tensor], device: str) -> None:
    """Raise CUDA's error for tensors of two devices; some operators accept a scalar tensor of the host."""
    if name in ("copy_", "_to_copy"):
        return
    if name in _INDEXED and device == "cpu":
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    host = [tensor for tensor in tensors if not isinstance(tensor, GPUTensor)]
    if name in _INDEXED:  # indices are copied to the device
        host = [tensor for tensor in host if not any(tensor is index for index in args[1])]
    named = name in _TAKES_SCALAR or name in _INDEXED or name in _EMULATED
    takes_scalar = named or name.startswith("_foreach_") or torch.Tag.pointwise in func.tags
    writes_to_host = name.endswith("_") and not isinstance(tensors[0], GPUTensor)
    if host and (writes_to_host or not takes_scalar or any(tensor.dim() for tensor in host)):
        shapes = ", ".join(f"{list(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, gpu:0 and cpu! "
            f"({name} of {shapes})"
        )


def _causes_of_waiting(name: str, args: Any, kwargs: Any, device: str) -> Iterator[str]:
    """Why the host waits at an operator."""
    if name in _WAITS:
        yield _WAITS[name]
    elif name == "isin" and not kwargs.get("assume_unique"):
        yield "isin without assume_unique"
    elif name == "repeat_interleave" and kwargs.get("output_size") is None:
        yield "repeat_interleave without output_size"
    elif name in _INDEXED:
        for index in args[1]:
            if index is not None and not isinstance(index, GPUTensor):
                yield "index from the host"
            elif index is not None and index.dtype in (torch.bool, torch.uint8):
                yield "mask as an index"
    elif name in ("copy_", "_to_copy"):
        source = args[1] if name == "copy_" else args[0]
        origin = "gpu" if isinstance(source, GPUTensor) else "cpu"
        non_blocking = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        host = source if origin == "cpu" else args[0] if name == "copy_" else None  # None: torch pins what it makes
        if origin != device and not (non_blocking and (host is None or _is_pinned(host))):
            yield f"copy {origin} to {device}"


# Autocast: torch knows the device, and leaves it to the backend which operators are cast. As on CUDA: to the lower
# precision, to float32, and to float32 inside of the kernel (by its argument dtype).

_LOWER = """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d einsum linalg_multi_dot linear matmul mm mv
    prelu scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist erfinv exp expm1
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2 logsumexp
    margin_ranking_loss mse_loss multi_margin_loss native_layer_norm nll_loss norm pow reciprocal renorm rsqrt sinh
    smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss
"""
_FLOAT32_INSIDE = "cumprod cumsum linalg_vector_norm log_softmax prod softmax sum"
#: Casts of weights by the weight's id; the weight is kept, so that no other tensor gets its id.
_weight_casts: dict[int, tuple[Tensor, Tensor]] = {}
_clear_torch_cache = torch.clear_autocast_cache


def _clear_autocast_cache() -> None:
    """Drop the casts of weights where the outermost autocast ends, as torch does."""
    _weight_casts.clear()
    _clear_torch_cache()


def _register_autocast(library: Any) -> None:
    for names, rule in ((_LOWER, _cast(_to_lower)), (_FLOAT32, _cast(_to_float32)), (_FLOAT32_INSIDE, _float32_inside)):
        for name in names.split():
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                if not overload.endswith("out"):
                    library.impl(f"{name}.{overload}".removesuffix(".default"), rule(getattr(packet, overload)))


def _without_autocast(op: Any, args: Any, kwargs: Any) -> Any:
    keys: Any = torch._C.DispatchKey
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(keys.AutocastPrivateUse1)):
        return op(*args, **kwargs)


def _cast(cast_tensor: Callable[[Tensor], Tensor]) -> Callable[[Any], Callable[..., Any]]:
    """A rule that casts every tensor among an operator's arguments."""

    def rule(op: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: _without_autocast(op, *tree_map_only(Tensor, cast_tensor, (args, kwargs)))

    return rule


def _to_lower(tensor: Tensor) -> Tensor:
    dtype = torch.get_autocast_dtype("gpu")
    if tensor.device.type != "gpu" or tensor.dtype not in (torch.float32, *_HALVES) or tensor.dtype == dtype:
        return tensor
    if not (tensor.requires_grad and tensor.is_leaf and torch.is_autocast_cache_enabled()):
        return tensor.to(dtype)
    if id(tensor) not in _weight_casts:
        _weight_casts[id(tensor)] = (tensor, tensor.to(dtype))
    return _weight_casts[id(tensor)][1]


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if _is_half(tensor) else tensor


def _float32_inside(op: Any) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    position = names.index("dtype") if "dtype" in names else 0

    def with_dtype(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= position and kwargs.get("dtype") is None and _is_half(args[0]):
            kwargs["dtype"] = torch.float32
        return _without_autocast(op, args, kwargs)

    return with_dtype


def _is_half(tensor: Tensor) -> bool:
    return tensor.device.type == "gpu" and tensor.dtype in _HALVES


# Memory-efficient attention, which CUDA has and the CPU has not

_BIAS_ALIGNMENT = 8  # keys of a bias come in multiples of it


def _choose_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention``: the efficient kernel for 4-D inputs, unless causal, grouped or of float64."""
    aten: Any = torch.ops.aten
    if is_causal or enable_gqa or query.dim() != 4 or query.dtype == torch.float64:
        plain = aten._scaled_dot_product_attention_math
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        return cast(Tensor, plain(*arguments, scale=scale, enable_gqa=enable_gqa)[0])
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(bias.logical_not(), -math.inf)
        if missing := -bias.shape[-1] % _BIAS_ALIGNMENT:
            bias = pad(bias, (0, missing))[..., :-missing]
        bias = bias.expand(*query.shape[:3], key.shape[2])
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    efficient = aten._scaled_dot_product_efficient_attention
    return cast(Tensor, efficient(query, key, value, bias, needs_gradient, dropout_p, scale=scale)[0])


def _forward(call: Any) -> tuple[Tensor | int, ...]:
    """The efficient kernels of padded and of packed sequences."""
    generator, mixed = _generator(call), []
    for query, key, value, bias in _sequences(call, call.query, call.key, call.value):
        mixed.append((_weights(call, query, key, bias, generator)[1] @ value.float()).to(query.dtype))
    logsumexp = torch.zeros(1 if call.compute_log_sumexp else 0)  # the backward below computes the scores again
    draws = torch.tensor(call.philox_seed), torch.tensor(call.philox_offset)  # on the host, as outside of graphs
    sizes = (call.max_seqlen_q, call.max_seqlen_k) if _is_packed(call) else ()
    return _joined(call, mixed), logsumexp, *draws, *sizes


def _backward(call: Any) -> tuple[Tensor | None, ...]:
    """Their backward passes. Dropout drops what it dropped in the forward pass; a bias has no gradient."""
    if not call.logsumexp.numel():
        raise RuntimeError("the backward of efficient attention needs a forward with compute_log_sumexp=True")
    generator, gradients = _generator(call), []
    for query, key, value, bias, upper in _sequences(call, call.query, call.key, call.value, call.grad_out_):
        weights, dropped = _weights(call, query, key, bias, generator)
        of_weights = upper.float() @ value.float().transpose(-2, -1) * dropped  # [queries, keys], times the weights
        of_scores = (of_weights - weights * of_weights.sum(-1, keepdim=True)) * _scale(call)
        parts = (
            of_scores @ key.float(),
            of_scores.transpose(-2, -1) @ query.float(),
            dropped.transpose(-2, -1) @ upper.float(),
        )
        gradients.append([part.to(query.dtype) for part in parts])
    return *(_joined(call, list(parts)) for parts in zip(*gradients, strict=True)), None


def _is_packed(call: Any) -> bool:
    return hasattr(call, "cu_seqlens_q")


def _sequences(call: Any, query: Tensor, key: Tensor, value: Tensor, *upper: Tensor) -> list[tuple[Any, ...]]:
    """Queries, keys, values, bias and ``upper``, […, length, width]: of the batch, or of each packed sequence."""
    if not _is_packed(call):
        return [(query, key, value, call.attn_bias, *upper)]
    if call.bias is not None or call.custom_mask_type:
        raise NotImplementedError("the emulated GPU has no packed attention with a bias or a causal mask")
    of_queries = _lengths(query, call.cu_seqlens_q, call.max_seqlen_q)
    of_keys = _lengths(key, call.cu_seqlens_k, call.max_seqlen_k)
    if len(of_queries) != len(of_keys):
        raise RuntimeError(f"{len(of_queries)} sequences of queries, {len(of_keys)} of keys")
    columns = ((query, of_queries), (key, of_keys), (value, of_keys), *((tensor, of_queries) for tensor in upper))
    heads = [torch.split(tensor[0].transpose(0, 1), lengths, 1) for tensor, lengths in columns]
    return list(zip(*heads[:3], [None] * len(of_keys), *heads[3:], strict=True))


def _joined(call: Any, parts: list[Tensor]) -> Tensor:
    """One tensor of the parts, in CUDA's memory layout: the heads of a token beside each other."""
    if _is_packed(call):
        return torch.cat(parts, 1).transpose(0, 1).contiguous()[None]
    return parts[0].transpose(1, 2).contiguous().transpose(1, 2)


def _lengths(tokens: Tensor, offsets: Tensor | None, longest: int | None) -> list[int]:
    """The lengths of packed sequences; raises CUDA's errors for arguments that it does not accept."""
    if offsets is None or offsets.dtype != torch.int32 or longest is None or tokens.dim() != 4 or tokens.shape[0] != 1:
        raise RuntimeError("packed attention takes [1, tokens, heads, width], cu_seqlens of int32, and max_seqlen")
    bounds: list[int] = offsets.tolist()
    lengths = [last - first for first, last in pairwise(bounds)]
    if bounds[-1] != tokens.shape[1] or longest < max(lengths):
        words = f"cu_seqlens should end at {tokens.shape[1]}, max_seqlen be at least {max(lengths)}"
        raise RuntimeError(f"{words}. Found {bounds[-1]} and {longest}.")
    return lengths


def _weights(
    call: Any, query: Tensor, key: Tensor, bias: Tensor | None, generator: _CPUGenerator
) -> tuple[Tensor, Tensor]:
    """The weights […, queries, keys], before and after dropout, in float32 as the kernels compute."""
    scores = query.float() @ key.float().transpose(-2, -1) * _scale(call)
    weights, p = (scores if bias is None else scores + bias.float()).softmax(-1), call.dropout_p
    return weights, weights * torch.rand(weights.shape, generator=generator).ge(p) / (1 - p) if p else weights


def _scale(call: Any) -> float:
    return 1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale


def _generator(call: Any) -> _CPUGenerator:
    return _CPUGenerator().manual_seed(_kernel_seed(int(call.philox_seed), int(call.philox_offset)))


#: What runs in place of CUDA's kernels, by name.
_EMULATED: dict[str, Callable[[Any], Any]] = {
    "_efficient_attention_forward": _forward,
    "_efficient_attention_backward": _backward,
    "_scaled_dot_product_efficient_attention": _forward,
    "_scaled_dot_product_efficient_attention_backward": _backward,
}
