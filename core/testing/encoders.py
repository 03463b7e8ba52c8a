"""Laws of encoders. Give options that make a small untrained one."""

import torch
from torch import Tensor

from taskloom.core.encoder import Encoder
from taskloom.core.random import bind_generator
from taskloom.core.testing.law import Subject, generator, given, require, require_close, untouched_randomness
from taskloom.core.tokens import Reads, Tokens, arrange

TEXTS = ("a small cat", "the dog, which had waited all day long, ran out into the garden and did not come back", "yes")
OTHERS = ("one cat", "no", "the old house by the sea was sold to somebody from the city last summer")


def _built(subject: Subject, seed: int = 0) -> Encoder:
    encoder: Encoder = subject.make()
    encoder.check()
    encoder.build(generator=generator(seed))
    return encoder.eval()


def _tokens(encoder: Encoder, reads: Reads = "single", rows: slice = slice(None)) -> Tokens:
    columns = [encoder.tokenize(TEXTS[rows]), encoder.tokenize(OTHERS[rows])]
    return arrange(columns, reads, encoder.frame, encoder.longest)


def _vectors(encoder: Encoder, tokens: Tokens) -> Tensor:
    """The way that training takes."""
    return encoder.vectors(encoder.embed(tokens), tokens)


def tokens_become_one_vector_per_sequence(subject: Subject) -> None:
    encoder = _built(subject)
    for reads, count in (("single", 3), ("pair", 6), ("joint", 3)):
        for rows, share in ((slice(None), 1), (slice(1), 3)):
            with given(f"{count // share} sequences, reads {reads!r}"), torch.no_grad():
                tokens = _tokens(encoder, reads, rows)  # type: ignore[arg-type]
                embedded = encoder.embed(tokens)
                states = encoder.encode(embedded, tokens)
                pooled = encoder.pool(states, tokens)
                each = (len(tokens.ids), encoder.width)
                require(embedded.shape == each, f"embed should give {list(each)}. Found {list(embedded.shape)}.")
                require(states.shape == each, f"encode should give {list(each)}. Found {list(states.shape)}.")
                whole = (count // share, encoder.width)
                require(pooled.shape == whole, f"pool should give {list(whole)}. Found {list(pooled.shape)}.")
                require(bool(pooled.isfinite().all()), "a vector is not finite")
                require_close(encoder.vectors(embedded, tokens), pooled, "vectors is not encode and pool in a row")
                require_close(encoder(tokens), pooled, "calling it is not embed, encode and pool in a row")


def a_sequence_does_not_depend_on_its_batch(subject: Subject) -> None:
    encoder = _built(subject)
    for reads in ("single", "joint"):
        with torch.no_grad():
            together = _vectors(encoder, _tokens(encoder, reads))
            for row in range(3):
                with given(f"text {row} of 3, reads {reads!r}"):
                    alone = _vectors(encoder, _tokens(encoder, reads, slice(row, row + 1)))
                    require_close(alone[0], together[row], "alone it gets another vector")


def tokenizing_is_stable(subject: Subject) -> None:
    """Needs no build, and the key of the vocabulary stays the same with the ids."""
    first, second = subject.make(), subject.make()
    require(first.vocabulary_key() == second.vocabulary_key(), "two of them have different vocabulary keys")
    together, alone = first.tokenize(TEXTS), [second.tokenize([text])[0] for text in TEXTS]
    same = [list(a) == list(b) for a, b in zip(together, alone, strict=True)]
    require(all(same), "a text gets other ids in another batch")
    require(first.content() == second.content(), "two of them have different content()")


def its_randomness_is_the_generators(subject: Subject) -> None:
    """One seed gives one encoder and one training pass; nothing global is drawn from."""
    runs = []
    for _ in range(2):
        with untouched_randomness():
            encoder = _built(subject, seed=3).train()
            bind_generator(encoder, generator(4))
            runs.append((encoder.state_dict(), _vectors(encoder, _tokens(encoder))))
    differ = [name for name, value in runs[0][0].items() if not value.equal(runs[1][0][name])]
    require(not differ, f"the same seed gives other parameters: {differ[:3]}")
    require(runs[0][1].equal(runs[1][1]), "the same seed gives other vectors in training")


def gradients_reach_its_embeddings_and_parameters(subject: Subject) -> None:
    encoder = _built(subject)
    tokens = _tokens(encoder, "joint")
    embedded = encoder.embed(tokens)
    start = embedded.detach().requires_grad_()
    pooled = encoder.vectors(start, tokens)
    # Sums of normalised vectors may be constant, so each coordinate gets a weight of its own.
    torch.autograd.backward((pooled * torch.randn(pooled.shape, generator=generator(9))).sum())
    require(start.grad is not None and bool(start.grad.any()), "no gradient reaches the embeddings")
    if encoder.trainable:
        require(embedded.requires_grad, "the embeddings carry no gradient to the parameters")
        reached = [parameter.grad is not None for parameter in encoder.parameters() if parameter.requires_grad]
        require(any(reached), "no gradient reaches a parameter")
    else:
        trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
        require(not trained, f"it is not trainable, but {trained[:3]} require gradients")


def it_works_in_bfloat16(subject: Subject) -> None:
    encoder = _built(subject)
    tokens = _tokens(encoder)
    with torch.no_grad():
        expected = _vectors(encoder, tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = _vectors(encoder, tokens)
    require_close(found.float(), expected, "bfloat16 gives other vectors", within=0.1)


def its_state_survives_saving(subject: Subject) -> None:
    first, second = _built(subject, 0), _built(subject, 1)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        same = _vectors(first, _tokens(first)).equal(_vectors(second, _tokens(second)))
    require(same, "an encoder that loaded the state gives other vectors")


LAWS = (
    tokens_become_one_vector_per_sequence,
    a_sequence_does_not_depend_on_its_batch,
    tokenizing_is_stable,
    its_randomness_is_the_generators,
    gradients_reach_its_embeddings_and_parameters,
    it_works_in_bfloat16,
    its_state_survives_saving,
)
