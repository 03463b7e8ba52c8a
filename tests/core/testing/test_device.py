"""The pretend device computes what the CPU computes, refuses what CUDA refuses, and counts what costs time there."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from taskloom.core.testing.device import PretendGPU

LENGTHS, HEADS, WIDTH = (5, 1, 7, 3), 2, 4


def vector(count: int = 4) -> Tensor:
    return torch.arange(float(count)).to("cuda")


def table() -> Tensor:
    return torch.arange(12.0).view(3, 4).to("cuda")


def sparse() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1, 1]], device="cuda"), vector(2), (3,), check_invariants=False)


# A program, the kernels that it launches and how often the host waits; its first argument is on the device already.
COUNTED: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Any], int, int]] = {
    "one product": (table, lambda x: x @ x.T, 1, 0),
    "views": (table, lambda x: x.view(4, 3).T[1:, None].detach(), 0, 0),
    "a new tensor": (table, lambda x: torch.zeros(3, device=x.device), 1, 0),
    "memory alone": (table, torch.empty_like, 0, 0),
    "a number of the host's": (table, lambda x: x + torch.tensor(2.0), 1, 0),
    "item": (vector, lambda x: x[0].item(), 0, 1),
    "float of a sum": (vector, lambda x: float(x.sum()), 1, 1),
    "a branch": (vector, lambda x: 1 if x.isfinite().all() else 0, 5, 1),
    "tolist": (vector, lambda x: x.tolist(), 1, 1),
    "to the host": (vector, lambda x: x.cpu(), 1, 1),
    "to the host, not waited for": (vector, lambda x: x.to("cpu", non_blocking=True), 1, 0),
    "from the host": (vector, lambda x: torch.ones(3).to(x.device), 1, 1),
    "from the host, not pinned": (vector, lambda x: torch.ones(3).to(x.device, non_blocking=True), 1, 1),
    "from pinned memory": (vector, lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True), 1, 0),
    "from a part of pinned memory": (
        vector,
        lambda x: torch.ones(3).pin_memory()[1:].to(x.device, non_blocking=True),
        1,
        0,
    ),
    "from pinned memory, blocking": (vector, lambda x: torch.ones(3).pin_memory().to(x.device), 1, 1),
    "into what is there": (vector, lambda x: x.copy_(torch.ones(4).pin_memory(), non_blocking=True), 1, 0),
    "a list": (vector, lambda x: torch.tensor([1.0, 2.0], device=x.device), 1, 1),
    "a mask as an index": (vector, lambda x: x[x > 1], 2, 1),
    "an index": (vector, lambda x: x[x.long()], 2, 0),
    "an index from the host": (vector, lambda x: x[torch.tensor([0, 2])], 1, 1),
    "nonzero": (vector, lambda x: x.nonzero(), 1, 1),
    "unique": (vector, lambda x: x.unique(), 1, 1),
    "coalesce": (sparse, lambda x: x.coalesce(), 1, 1),
    "isin": (vector, lambda x: torch.isin(x, x), 1, 1),
    "isin of unique numbers": (vector, lambda x: torch.isin(x, x, assume_unique=True), 1, 0),
    "repeat_interleave": (vector, lambda x: torch.repeat_interleave(x.long()), 2, 1),
    "repeat_interleave that knows": (vector, lambda x: torch.repeat_interleave(x.long(), output_size=6), 2, 0),
    "synchronize": (vector, lambda x: torch.cuda.synchronize(), 0, 1),
    "many at once": (table, lambda x: torch._foreach_mul([x, x, x], 2.0), 1, 0),
    "native dropout": (table, lambda x: torch.native_dropout(x, 0.5, True), 1, 0),
    "dropout": (table, lambda x: F.dropout(x, 0.5), 1, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_kernels_and_waits_are_counted(name: str) -> None:
    make, program, kernels, waits = COUNTED[name]
    with PretendGPU() as gpu:
        start = make()
        gpu.reset()
        program(start)
        assert (gpu.kernels.total(), gpu.waits.total()) == (kernels, waits), (gpu.kernels, gpu.waits)
        lines = {line for counter in (gpu.kernels, gpu.waits) for _, line in counter}
    assert all(line.split(":")[0] == __file__ for line in lines)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "tensors of two devices": (lambda x: x + torch.ones(3, 4), "same device.* cpu"),
    "a product with the host's": (lambda x: x @ torch.ones(4), "same device"),
    "a number of the host's in a list": (lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]), "same device"),
    "writing to the host": (lambda x: torch.ones(3, 4).add_(x), "same device"),
    "an index into the host's": (lambda x: torch.ones(3)[x[0].long()], "indices should be"),
    "embeddings on the host": (lambda x: F.embedding(x.long(), torch.ones(20, 2)), "same device"),
    "the host's generator": (
        lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
        "'gpu' device type",
    ),
    "its generator on the host": (lambda x: torch.rand(3, generator=torch.Generator(x.device)), "'cpu' device type"),
    "numpy": (lambda x: x.numpy(), "cpu()"),
    "a state of the host's generator": (lambda x: torch.Generator(x.device).set_state(torch.get_rng_state()), "size"),
    "pinning": (lambda x: x.pin_memory(), "pin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(name: str) -> None:
    program, words = REFUSED[name]
    with PretendGPU(), pytest.raises((RuntimeError, TypeError), match=words):
        program(table())


def test_outside_there_is_no_device_and_torch_is_as_before() -> None:
    names = (torch.Generator, torch.cuda.is_available(), torch.cuda.default_generators, torch.clear_autocast_cache)
    with PretendGPU():
        assert torch.cuda.is_available()
        assert torch.device("cuda") == torch.device("gpu:0")
        left = table()
    assert names == (
        torch.Generator,
        torch.cuda.is_available(),
        torch.cuda.default_generators,
        torch.clear_autocast_cache,
    )
    assert torch.device("cuda").type == "cuda"
    with pytest.raises(RuntimeError, match="has been left"):
        left + 1


def test_a_model_learns_there_what_it_learns_on_the_cpu() -> None:
    def learnt(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 4, sparse=False), nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4))
        known = list(model.parameters())
        optimizer = torch.optim.AdamW(model.to(device).parameters(), fused=True)
        assert all(one is other for one, other in zip(known, model.parameters(), strict=True))
        for _ in range(3):
            model(torch.tensor([1, 4, 4, 2]).to(device)).pow(2)[:, 0].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    expected = learnt("cpu")
    with PretendGPU():
        found = learnt("cuda")
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


def test_what_changes_a_tensors_form_in_place_launches_nothing() -> None:
    with PretendGPU() as gpu:
        row = torch.ones(5, device="cuda") @ torch.ones(5, 3, device="cuda")  # a product of matrices and squeeze_
        assert row.shape == (3,)
        assert gpu.kernels.total() == 3
        assert row.unsqueeze_(1).shape == (3, 1)
        assert gpu.kernels.total() == 3


def test_memory_is_pinned_by_any_thread() -> None:
    with PretendGPU() as gpu, ThreadPoolExecutor() as pool:
        pinned = pool.submit(lambda: torch.ones(3).pin_memory()).result()
        assert pinned.is_pinned()
        assert not torch.ones(3).is_pinned()
        assert torch.empty(3, pin_memory=True).is_pinned()
        pinned.to("cuda", non_blocking=True)
        assert not gpu.waits


def test_its_tensors_can_be_saved() -> None:
    with PretendGPU():
        x = table()
        content = save({"x": x, "y": x * 2})
        with pytest.raises(RuntimeError, match="share memory"):
            save({"x": x, "y": x[1:]})
    assert load(content)["y"].equal(torch.arange(12.0).view(3, 4) * 2)


def test_draws_repeat_with_the_state_of_the_default_generator() -> None:
    with PretendGPU():
        generator, x, before = torch.cuda.default_generators[0], table(), torch.get_rng_state()
        own = torch.Generator(device="cuda").manual_seed(5)
        generator.set_state(own.get_state())
        first = [torch.native_dropout(x, 0.5, True)[0], F.dropout(x, 0.5), torch.rand(8, device=x.device)]
        after = generator.get_state()
        generator.set_state(torch.tensor([5, 0]).view(torch.uint8))  # seed and offset, as CUDA's
        second = [torch.native_dropout(x, 0.5, True)[0], F.dropout(x, 0.5), torch.rand(8, device=x.device)]
        assert all(one.cpu().equal(other.cpu()) for one, other in zip(first, second, strict=True))
        assert not first[0].cpu().equal(first[1].cpu())
        assert generator.get_state().equal(after)
        assert torch.get_rng_state().equal(before)
        torch.manual_seed(5)
        assert torch.native_dropout(x, 0.5, True)[0].cpu().equal(first[0].cpu())


def test_autocast_casts_as_on_cuda_and_each_weight_once() -> None:
    with PretendGPU() as gpu:
        x, layer = table(), nn.Linear(4, 4).to("cuda")
        gpu.reset()
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = layer(layer(x))
            dtypes = [y.dtype, y.softmax(-1).dtype, F.layer_norm(y, (4,)).dtype, F.gelu(y).dtype, (y.sum() * 1).dtype]
            losses = F.mse_loss(y, x)
        assert dtypes == [torch.bfloat16, torch.float32, torch.float32, torch.bfloat16, torch.float32]
        assert losses.dtype == torch.float32
        casts = sum(count for (name, _), count in gpu.kernels.items() if name == "_to_copy")
        assert casts == 6  # x, the weight, the bias; y for softmax, layer_norm and mse_loss
        assert layer(x).dtype == torch.float32
        losses.backward()
        assert layer.weight.grad.dtype == torch.float32
        expected = nn.functional.linear(x.cpu().bfloat16(), layer.weight.cpu().bfloat16(), layer.bias.cpu().bfloat16())
        with torch.autocast("gpu", dtype=torch.bfloat16):
            assert layer(x).cpu().equal(expected)


def packed(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(1, sum(LENGTHS), HEADS, WIDTH, generator=draws).to(dtype) for _ in range(4)]


def ends(counts: tuple[int, ...]) -> Tensor:
    return F.pad(torch.tensor(counts).cumsum(0), (1, 0)).int()


def efficient(q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, queries: tuple[int, ...] = LENGTHS) -> Tensor:
    op = torch.ops.aten._efficient_attention_forward
    bounds = [ends(counts).to(q.device) for counts in (queries, LENGTHS)]
    return op(q, k, v, None, *bounds, max(queries), max(LENGTHS), p, 0, True, scale=None)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [LENGTHS, (1, 1, 1, 1)], ids=["every token", "first tokens"])
def test_packed_attention_is_attention_of_each_sequence(dtype: torch.dtype, queries: tuple[int, ...]) -> None:
    q, k, v, upper = packed(dtype)
    q, upper = q[:, : sum(queries)], upper[:, : sum(queries)]
    leaves = [one.double().requires_grad_() for one in (q, k, v)]
    parts = zip(leaves[0].split(queries, 1), leaves[1].split(LENGTHS, 1), leaves[2].split(LENGTHS, 1), strict=True)
    expected = torch.cat(
        [scaled_dot_product_attention(*(x.transpose(1, 2) for x in part)).transpose(1, 2) for part in parts], dim=1
    )
    expected.backward(upper.double())
    with PretendGPU() as gpu:
        on_gpu = [one.to("cuda").requires_grad_() for one in (q, k, v)]
        upper = upper.to("cuda")
        gpu.reset()
        out = efficient(*on_gpu, queries=queries)
        out.backward(upper)
        names = [name for name, _ in gpu.kernels if "attention" in name]
        assert names == ["_efficient_attention_forward", "_efficient_attention_backward"]
        found = [out, *(one.grad for one in on_gpu)]
        assert {one.dtype for one in found} == {dtype}
        found = [one.detach().cpu().double() for one in found]
    within = 1e-5 if dtype == torch.float32 else 3e-2
    for one, other in zip(found, [expected, *(leaf.grad for leaf in leaves)], strict=True):
        assert (one - other).abs().max() < within


def test_dropout_of_packed_attention_keeps_the_mean_and_repeats() -> None:
    q, k, v, _ = packed(torch.float32)
    with PretendGPU():
        q, k, v = (one.to("cuda") for one in (q, k, v))
        plain = efficient(q, k, v).cpu()
        state = torch.cuda.get_rng_state()
        draws = [efficient(q, k, v, 0.3).cpu() for _ in range(2000)]
        torch.cuda.set_rng_state(state)
        again = efficient(q, k, v, 0.3).cpu()
    assert again.equal(draws[0])
    assert not draws[1].equal(draws[0])
    found = torch.stack(draws)
    assert ((found.mean(0) - plain) / (found.std(0) / math.sqrt(len(draws)) + 1e-6)).abs().max() < 5


def test_the_backward_of_packed_attention_drops_what_the_forward_dropped() -> None:
    inputs = packed(torch.float32)
    upper = inputs.pop()
    with PretendGPU():
        leaves, upper = [one.to("cuda").requires_grad_() for one in inputs], upper.to("cuda")
        state = torch.cuda.get_rng_state()

        def value(step: float, direction: list[Tensor]) -> float:
            torch.cuda.set_rng_state(state)
            moved = [leaf.detach() + step * part for leaf, part in zip(leaves, direction, strict=True)]
            return float((efficient(*moved, 0.4) * upper).sum())

        (efficient(*leaves, 0.4) * upper).sum().backward()  # the same state as value's
        direction = [one.to("cuda") for one in packed(torch.float32, seed=1)[:3]]
        slope = sum(float((leaf.grad * part).sum()) for leaf, part in zip(leaves, direction, strict=True))
        difference = (value(1e-2, direction) - value(-1e-2, direction)) / 2e-2
    assert slope == pytest.approx(difference, rel=1e-2)


def test_a_watcher_sees_every_operator_with_its_numbers() -> None:
    seen: list[tuple[str, Any]] = []
    with PretendGPU(lambda func, args, kwargs, line: seen.append((func._schema.name, args))):
        table().index_add_(0, torch.tensor([1, 1]).to("cuda"), torch.ones(2, 4).to("cuda"))
    assert seen[-1][0] == "aten::index_add_"
    assert seen[-1][1][2].tolist() == [1, 1]


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_of_a_padded_batch_is_one_kernel_each_way(mask: str) -> None:
    draws = torch.Generator().manual_seed(0)
    q, k, v, upper = (torch.randn(3, HEADS, 8, WIDTH, generator=draws) for _ in range(4))
    kept = torch.arange(8) < torch.tensor([8, 3, 5])[:, None, None, None]
    bias = {"none": None, "bool": kept, "float": torch.zeros(kept.shape).masked_fill(~kept, -math.inf)}[mask]
    leaves = [one.clone().requires_grad_() for one in (q, k, v)]
    expected = scaled_dot_product_attention(*leaves, bias)
    expected.backward(upper)
    with PretendGPU() as gpu:
        on_gpu = [one.to("cuda").requires_grad_() for one in (q, k, v)]
        bias, upper = None if bias is None else bias.to("cuda"), upper.to("cuda")
        gpu.reset()
        out = scaled_dot_product_attention(*on_gpu, bias)
        out.transpose(1, 2).flatten(2)  # a view, as of CUDA's
        slopes = torch.autograd.grad(out, on_gpu, upper)
        assert gpu.kernels.total() == (5 if mask == "bool" else 2)  # a mask is turned into a bias first
        found = [one.detach().cpu() for one in (out, *slopes)]
    for one, other in zip(found, [expected, *(leaf.grad for leaf in leaves)], strict=True):
        assert (one - other).abs().max() < 1e-5


def test_dropout_of_a_padded_batch_is_the_same_both_ways() -> None:
    with PretendGPU():
        q, k, v = (torch.randn(2, HEADS, 5, WIDTH).to("cuda").requires_grad_() for _ in range(3))
        state = torch.cuda.get_rng_state()
        out = scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        out.sum().backward()
        torch.cuda.set_rng_state(state)
        again = scaled_dot_product_attention(q, k, v + 1, dropout_p=0.5)
        assert not out.allclose(scaled_dot_product_attention(q, k, v))
        # Linear in the values: one more in each adds the sum of their gradients.
        assert (again - out).detach().sum().item() == pytest.approx(v.grad.sum().item(), rel=1e-4)
