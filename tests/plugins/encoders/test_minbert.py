"""minbert: equal to transformers.BertModel, independent of the batch, its own randomness, weights that do not fit."""

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import linear

from taskloom.core import Tokens, WeightsError, bind_generator, derive_generator
from taskloom.plugins.encoders import copies
from taskloom.plugins.encoders.attention import block_sizes
from taskloom.plugins.encoders.minbert import MinBert

os.environ.setdefault("HF_HUB_OFFLINE", "1")
LENGTHS = [1, 400, 3, 17, 60, 60, 2, 33]


def built(seed: int = 0, **options: object) -> MinBert:
    encoder = MinBert(**options)  # type: ignore[arg-type]
    encoder.build(generator=derive_generator(seed, "encoder"))
    bind_generator(encoder, derive_generator(seed, "dropout"))
    return encoder.eval()


def random_tokens(lengths: list[int], vocabulary: int, *, joined: bool = False, seed: int = 0) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(5, vocabulary, (n,), generator=generator).tolist() for n in lengths]
    types = [[0] * (n // 2) + [1] * (n - n // 2) if joined else [0] * n for n in lengths]
    return Tokens.pack(sequences, types)


def states_of(encoder: MinBert, tokens: Tokens) -> Tensor:
    return encoder.encode(encoder.embed(tokens), tokens)


def reference_output(model, tokens: Tokens) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        out = model(
            input_ids=tokens.pad(tokens.ids),
            token_type_ids=tokens.pad(tokens.types),
            attention_mask=tokens.mask.long(),
        )
    return tokens.unpad(out.last_hidden_state), out.pooler_output


@pytest.fixture(scope="module")
def minilm_reference(minilm: Path):  # type: ignore[no-untyped-def]
    from transformers import BertModel

    return BertModel.from_pretrained(minilm, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def pretrained() -> MinBert:
    return built(weights="minilm")


# Equality with transformers


@pytest.mark.parametrize("joined", [False, True])
def test_equal_to_transformers_on_minilm(minilm_reference, pretrained: MinBert, joined: bool) -> None:  # type: ignore[no-untyped-def]
    tokens = random_tokens(LENGTHS, 30522, joined=joined)
    with torch.no_grad():
        states = states_of(pretrained, tokens)
        pooled, vectors = pretrained.pool(states, tokens), pretrained(tokens)
    hidden, pooler = reference_output(minilm_reference, tokens)
    torch.testing.assert_close(states, hidden, atol=1e-5, rtol=0)
    torch.testing.assert_close(pooled, pooler, atol=1e-5, rtol=0)
    torch.testing.assert_close(vectors, pooler, atol=1e-5, rtol=0)


# Laws


def test_many_heads_and_lengths_make_several_groups() -> None:
    """The comparison with transformers is worth something only if its batch is cut into several groups."""
    assert block_sizes([48, 47, 46, 3, 3, 2, 2, 1, 1], heads=12) == [3, 6]
    assert block_sizes([400, 60, 60, 33, 17, 3, 2, 1], heads=12)[0] == 1
    assert block_sizes([7] * 100, heads=12) == [100]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 16))
def test_groups_never_cost_more_than_one_block(lengths: list[int], heads: int) -> None:
    lengths = sorted(lengths, reverse=True)
    sizes = block_sizes(lengths, heads)
    assert sum(sizes) == len(lengths)
    assert min(sizes) > 0
    cost = start = 0
    for size in sizes:
        cost += size * lengths[start] ** 2
        start += size
    assert cost <= len(lengths) * lengths[0] ** 2


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "max"])
@pytest.mark.parametrize("lengths", [[4, 9, 1], [6, 6], [5]])
def test_poolings_are_what_they_say(pooling: str, lengths: list[int]) -> None:
    encoder = built(layers=1, width=8, heads=2, vocabulary=60, pooling=pooling)
    tokens = random_tokens(lengths, 60)
    with torch.no_grad():
        states = states_of(encoder, tokens)
        parts = states.split(lengths)
        definitions: dict[str, Callable[[Tensor], Tensor]] = {
            "cls": lambda part: part[0],
            "mean": lambda part: part.mean(0),
            "max": lambda part: part.amax(0),
            "pooler": lambda part: torch.tanh(linear(part[0], *encoder.pooler["dense"].parameters())),  # type: ignore[index]
        }
        expected = torch.stack([definitions[pooling](part) for part in parts])
        torch.testing.assert_close(encoder.pool(states, tokens), expected)
        torch.testing.assert_close(encoder(tokens), expected, atol=1e-6, rtol=1e-5)
    assert (encoder.pooler is not None) == (pooling == "pooler")


def test_embedding_gradient_is_the_rows_of_the_batch() -> None:
    encoder = built(layers=1, width=8, heads=2, vocabulary=60)
    tokens = Tokens.pack([[2, 7, 7, 3], [2, 9, 3]])
    encoder.embed(tokens).sum(1).dot(torch.arange(7.0)).backward()
    gradient = encoder.embeddings.word.grad
    assert gradient.is_sparse
    assert set(gradient.coalesce().indices()[0].tolist()) == {2, 3, 7, 9}


# Randomness


def test_build_is_decided_by_the_generator() -> None:
    one, same, other = (built(seed, layers=1, width=8, heads=2) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.embeddings.word, other.embeddings.word)
    assert one.embeddings.word.std().item() == pytest.approx(0.02, rel=0.02)
    assert not one.layers[0].qkv.bias.any()
    assert one.layers[0].output_norm.weight.eq(1).all()


def test_dropout_acts_where_bert_has_it() -> None:
    tokens = random_tokens([30, 30], 60)
    sizes = {"layers": 1, "width": 16, "heads": 4, "vocabulary": 60}
    still = built(**sizes, dropout=0.0, attention_dropout=0.0).train()
    assert torch.equal(still(tokens), still(tokens))
    attention = built(**sizes, dropout=0.0, attention_dropout=0.5).train()
    assert torch.equal(attention.embed(tokens), attention.embed(tokens))
    assert not torch.equal(attention(tokens), attention(tokens))
    hidden = built(**sizes, dropout=0.5, attention_dropout=0.0).train()
    dropped = (hidden.embed(tokens) == 0).float().mean().item()
    assert 0.4 < dropped < 0.6
    # Without dropout the two ways of computing attention are the same function.
    torch.testing.assert_close(still(tokens), still.eval()(tokens), atol=1e-6, rtol=0)


def test_written_out_attention_equals_the_fused_kernel() -> None:
    encoder = built(layers=2, width=48, heads=12, vocabulary=60, dropout=0.0, attention_dropout=1e-9)
    tokens = random_tokens([40, 3, 3, 17], 60)
    torch.testing.assert_close(encoder.train()(tokens), encoder.eval()(tokens), atol=1e-6, rtol=0)
    torch.testing.assert_close(states_of(encoder.train(), tokens), states_of(encoder.eval(), tokens), atol=1e-6, rtol=0)


def test_frozen_encoder_has_nothing_to_train() -> None:
    encoder = built(layers=1, width=8, heads=2, trainable=False)
    tokens = Tokens.pack([[2, 7, 3]])
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not encoder(tokens).requires_grad
    embedded = encoder.embed(tokens).requires_grad_()
    encoder.vectors(embedded, tokens).sum().backward()
    assert embedded.grad is not None


def test_untrained_sizes_that_do_not_fit_each_other() -> None:
    with pytest.raises(WeightsError, match=r"heads should divide width\. Found width 100 and heads 3"):
        MinBert(width=100, heads=3).check()


def test_untrained_defaults() -> None:
    encoder = built()
    assert (len(encoder.layers), encoder.width, encoder.heads, encoder.max_length) == (2, 128, 2, 512)
    assert encoder.embeddings.word.shape == (8192, 128)
    assert built(width=64).layers[0].up.weight.shape == (256, 64)


def test_where_nothing_is_learned_weights_are_laid_out_anew_when_they_change() -> None:
    encoder, tokens = built(layers=2, width=16, heads=2, vocabulary=64), random_tokens([3, 9, 4], 64)
    for change in (0.0, 0.1, 0.2):
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(change)
            found = encoder(tokens)
        torch.testing.assert_close(found, encoder(tokens), atol=1e-6, rtol=1e-5)
    encoder.load_state_dict(built(seed=1, layers=2, width=16, heads=2, vocabulary=64).state_dict(), assign=True)
    with torch.inference_mode():
        found = encoder(tokens)
    torch.testing.assert_close(found.clone(), encoder(tokens).detach(), atol=1e-6, rtol=1e-5)
    other = copy.deepcopy(encoder)  # laid out, it can still be copied
    with torch.inference_mode():
        assert torch.equal(other(tokens), found)
    with torch.no_grad():  # and another precision is noticed
        found = encoder.bfloat16().float()(tokens)
    torch.testing.assert_close(found.clone(), encoder(tokens).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["pooler", "mean", "max"])
def test_the_forward_pass_compiles_as_one_graph(pooling: str) -> None:
    """Without dropout, once the layout of a batch is known: it is worked out on the host, by numpy."""
    encoder = built(layers=2, width=16, heads=2, vocabulary=64, pooling=pooling)
    tokens = Tokens.pack([[1, 7, 9, 2], [1, 2], [1, 5, 6, 7, 8, 9, 2]])
    expected = encoder(tokens)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)  # a break in the graph is an error
    assert torch.equal(compiled(tokens), expected)


def test_what_onednn_multiplies_has_the_gradients_of_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a gradient is differentiated once more."""
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=draw) for shape in ((37, 384), (512, 384), (512,)))
    found = []
    for smallest in (1, 2**40):
        monkeypatch.setattr(copies, "MIN_ONEDNN_SIZE", smallest)
        given = [part.clone().requires_grad_() for part in (x, weight, bias)]
        out = copies.linear(*given, (37,))
        assert copies.by_onednn(x, weight) == (smallest == 1)
        slopes = torch.autograd.grad(out.square().sum(), given, retain_graph=True)
        (again,) = torch.autograd.grad(out.square().sum(), given[0], create_graph=True)
        found.append([out, *slopes, *torch.autograd.grad(again.square().sum(), given[1])])
    for some, same in zip(*found, strict=True):
        assert (some - same).norm() <= 1e-5 * same.norm()


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "max"])
def test_scoring_in_order_of_length_gives_every_sequence_its_vector(pooling: str) -> None:
    encoder = built(layers=2, width=32, heads=2, vocabulary=64, pooling=pooling)
    lengths = [5, 3, 9, 3, 1, 5, 5, 12]
    tokens = Tokens.pack([[place + 5 + k for k in range(length)] for place, length in enumerate(lengths)])
    with torch.no_grad():
        found = encoder(tokens)
    torch.testing.assert_close(found, encoder(tokens).detach(), rtol=1e-5, atol=1e-5)  # in blocks, as for training
