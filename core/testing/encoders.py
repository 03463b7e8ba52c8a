"""Laws of encoders. Give options that make a small untrained one."""

from hashlib import sha256

import torch
from torch import Tensor

from taskloom.core.encoder import Encoder
from taskloom.core.errors import TaskloomError
from taskloom.core.random import bind_generator
from taskloom.core.testing.elsewhere import require_same_elsewhere
from taskloom.core.testing.files import other_options
from taskloom.core.testing.gradients import require_gradient
from taskloom.core.testing.law import (
    REFUSALS,
    Subject,
    at_edges,
    generator,
    given,
    require,
    require_close,
    require_equal,
    require_finite,
    untouched_randomness,
)
from taskloom.core.testing.states import written
from taskloom.core.tokens import Reads, Tokens, arrange

TEXTS = ("a small cat", "the dog, which had waited all day long, ran out into the garden and did not come back", "yes")
OTHERS = ("one cat", "no", "the old house by the sea was sold to somebody from the city last summer")
#: From no word at all to more than an encoder has places for.
EXTREMES = ("", "yes", "word " * 3000)


def _built(subject: Subject, seed: int = 0) -> Encoder:
    encoder: Encoder = subject.make()
    encoder.check()
    encoder.build(generator=generator(seed))
    return encoder.eval()


def _built_if_taken(subject: Subject) -> Encoder | None:
    """At the edge of an option an encoder may say that its sizes do not go together."""
    try:
        return _built(subject)
    except (TaskloomError, ValueError):
        if subject.quick:
            return None
        raise


def _tokens(encoder: Encoder, reads: Reads = "single", rows: slice = slice(None)) -> Tokens:
    columns = [encoder.tokenize(TEXTS[rows]), encoder.tokenize(OTHERS[rows])]
    return arrange(columns, reads, encoder.special_tokens, encoder.max_length)


def _vectors(encoder: Encoder, tokens: Tokens) -> Tensor:
    """The way that training takes."""
    return encoder.vectors(encoder.embed(tokens), tokens)


@at_edges
def tokens_become_one_vector_per_sequence(subject: Subject) -> None:
    encoder = _built_if_taken(subject)
    if encoder is None:
        return
    for reads, count in (("joint", 3),) if subject.quick else (("single", 3), ("pair", 6), ("joint", 3)):
        with given(f"{count} sequences, reads {reads!r}"):
            _require_shapes(encoder, _tokens(encoder, reads), count)  # type: ignore[arg-type]


def it_works_on_a_packed_batch_of_one(subject: Subject) -> None:
    encoder = _built(subject)
    for reads in ("single", "joint"):
        with given(f"1 sequence, reads {reads!r}"):
            _require_shapes(encoder, _tokens(encoder, reads, slice(1)), 1)


def very_different_lengths_go_into_one_batch(subject: Subject) -> None:
    encoder = _built(subject)
    tokens = arrange([encoder.tokenize(EXTREMES)], "single", encoder.special_tokens, encoder.max_length)
    with given(f"sequences of {tokens.lengths.tolist()} tokens"):
        _require_shapes(encoder, tokens, len(EXTREMES))
        with torch.no_grad():
            together = _vectors(encoder, tokens)
            short = arrange([encoder.tokenize(EXTREMES[:2])], "single", encoder.special_tokens, encoder.max_length)
            require_close(
                _vectors(encoder, short), together[:2], "beside a long sequence, short ones get other vectors"
            )


def a_long_text_is_cut_at_longest_alone(subject: Subject) -> None:
    """Who lays a batch out does that, with room for the frame and a token; ``tokenize`` gives every id of a text."""
    encoder = _built(subject)
    texts = [" ".join(f"word{n}" for n in range(count)) for count in (1500, 3000)]
    half, whole = (len(ids) for ids in encoder.tokenize(texts))
    require(half < whole, f"tokenize should not cut: texts of 1500 and 3000 words have {half} and {whole} ids")
    least = len(encoder.special_tokens.start + encoder.special_tokens.middle + encoder.special_tokens.end) + 1
    words = f"max_length should be at least {least}, for {least - 1} special tokens and one of a text"
    require(encoder.max_length >= least, f"{words}. Found {encoder.max_length}.")


def _require_shapes(encoder: Encoder, tokens: Tokens, count: int) -> None:
    with torch.no_grad():
        embedded = encoder.embed(tokens)
        states = encoder.encode(embedded, tokens)
        pooled = encoder.pool(states, tokens)
        each = (len(tokens.ids), encoder.width)
        require(embedded.shape == each, f"embed should give {list(each)}. Found {list(embedded.shape)}.")
        require(states.shape == each, f"encode should give {list(each)}. Found {list(states.shape)}.")
        whole = (count, encoder.width)
        require(pooled.shape == whole, f"pool should give {list(whole)}. Found {list(pooled.shape)}.")
        require_finite(pooled, "a vector")
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


def the_order_of_sequences_is_that_of_their_vectors(subject: Subject) -> None:
    encoder = _built(subject)
    with torch.no_grad():
        straight = _vectors(encoder, _tokens(encoder, "joint"))
        reversed_ = _vectors(encoder, _tokens(encoder, "joint", slice(None, None, -1)))
    require_close(reversed_.flip(0), straight, "with 3 sequences in reverse order: their vectors are others")


def tokenizing_is_stable(subject: Subject) -> None:
    """Needs no build, and the key of the vocabulary stays the same with the ids."""
    first, second = subject.make(), subject.make()
    require(first.vocabulary_key() == second.vocabulary_key(), "two of them have different vocabulary keys")
    together, alone = first.tokenize(TEXTS), [second.tokenize([text])[0] for text in TEXTS]
    for text, one, other in zip(TEXTS, together, alone, strict=True):
        words = f"with text {text!r}: it gets the ids {list(one)[:5]}… among others and {list(other)[:5]}… alone"
        require(list(one) == list(other), words)
    require(first.fingerprint() == second.fingerprint(), "two of them have different fingerprint()")


def the_vocabulary_key_follows_the_ids(subject: Subject) -> None:
    """Where other options give other ids, the key is another one: ids are kept under it."""
    base: Encoder = subject.make()
    here, key = [list(ids) for ids in base.tokenize(TEXTS)], base.vocabulary_key()
    require(bool(key) and isinstance(key, str), f"vocabulary_key() should be a filled string. Found {key!r}.")
    for name, value in other_options(subject):
        with given(f"{name}={value!r}"):
            try:
                other: Encoder = subject.make(**{name: value})
                other.check()
                there = [list(ids) for ids in other.tokenize(TEXTS)]
            except REFUSALS:
                continue
            same = here == there or other.vocabulary_key() != key
            require(same, f"text {TEXTS[0]!r} and others get other ids, and vocabulary_key() is still {key!r}")


@at_edges
def one_seed_gives_one_encoder_and_one_pass(subject: Subject) -> None:
    if _built_if_taken(subject) is None:
        return
    (first, one), (second, other) = _trained(subject), _trained(subject)
    for name, value in first.state_dict().items():
        require_equal(second.state_dict()[name], value, f"the same seed gives another parameter {name!r}")
    require_equal(other, one, "the same seed gives other vectors in training")


def a_new_process_gives_the_same_encoder(subject: Subject) -> None:
    require_same_elsewhere(ids_and_weights_of, subject)


def ids_and_weights_of(subject: Subject) -> list[str]:
    """The ids of some texts, and a digest of each tensor that a seed gives."""
    encoder = _built(subject)
    ids = [
        f"ids {list(map(int, found))} of {text[:40]!r}"
        for text, found in zip(TEXTS, encoder.tokenize(TEXTS), strict=True)
    ]
    tensors = {name: tensor for name, tensor in encoder.state_dict().items() if isinstance(tensor, Tensor)}
    return ids + [
        f"{name} {sha256(tensor.detach().float().numpy().tobytes()).hexdigest()[:12]}"
        for name, tensor in tensors.items()
    ]


def it_touches_no_global_random_state(subject: Subject) -> None:
    with untouched_randomness():
        _trained(subject)


def _trained(subject: Subject) -> tuple[Encoder, Tensor]:
    encoder = _built(subject, seed=3)
    return encoder, _pass(encoder, training=True)


def _pass(encoder: Encoder, *, training: bool) -> Tensor:
    """The vectors of a pass, whose random numbers are always the same."""
    bind_generator(encoder.train(training), generator(4))
    return _vectors(encoder, _tokens(encoder)).detach()


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


@at_edges
def its_gradients_are_those_of_finite_differences(subject: Subject) -> None:
    encoder = _built_if_taken(subject)
    if encoder is None or encoder.width > 64:  # differences of a large one drown in rounding
        return
    encoder = encoder.double()
    tokens = _tokens(encoder, "joint")
    start = encoder.embed(tokens).detach().requires_grad_()
    weights = torch.randn(len(tokens), encoder.width, generator=generator(9), dtype=torch.float64)
    with given("input embeddings"):
        require_gradient(lambda: (encoder.vectors(start, tokens) * weights).sum(), {"embeddings": start})
    named = {name: p for name, p in encoder.named_parameters() if p.requires_grad}
    if named and not subject.quick:
        few = {f"parameter {name!r}": named[name] for name in (*list(named)[:2], *list(named)[-2:])}
        require_gradient(lambda: (_vectors(encoder, tokens) * weights).sum(), few)


def it_leaves_tokens_and_embeddings_as_they_are(subject: Subject) -> None:
    encoder = _built(subject)
    tokens = _tokens(encoder, "joint")
    with torch.no_grad():
        embedded = encoder.embed(tokens)
        before = [part.clone() for part in (tokens.ids, tokens.lengths, tokens.types, embedded)]
        encoder.vectors(embedded, tokens)
    names = ("ids", "lengths", "types", "embeddings")
    for name, now, then in zip(names, (tokens.ids, tokens.lengths, tokens.types, embedded), before, strict=True):
        require_equal(now, then, f"the {name} were written to")


def it_works_in_bfloat16(subject: Subject) -> None:
    encoder = _built(subject)
    tokens = _tokens(encoder)
    with torch.no_grad(), given("autocast to bfloat16"):
        expected = _vectors(encoder, tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = _vectors(encoder, tokens)
        require_close(found.float(), expected, "it gives other vectors", within=0.1, least=1e-3)


@torch.no_grad()
def its_state_survives_saving(subject: Subject) -> None:
    first, second = _built(subject, 0), _built(subject, 1)
    for _ in range(2):
        _pass(first, training=True)
    second.load_state_dict(written(first))
    for words, training in (("evaluation", False), ("training", True)):
        with given(f"2 passes in training before it was saved, and one in {words} after"):
            found, expected = _pass(second, training=training), _pass(first, training=training)
            require_equal(found, expected, "an encoder that loaded the state gives other vectors")


def its_state_is_tensors(subject: Subject) -> None:
    written(_built(subject))


LAWS = (
    tokens_become_one_vector_per_sequence,
    it_works_on_a_packed_batch_of_one,
    very_different_lengths_go_into_one_batch,
    a_long_text_is_cut_at_longest_alone,
    a_sequence_does_not_depend_on_its_batch,
    the_order_of_sequences_is_that_of_their_vectors,
    tokenizing_is_stable,
    the_vocabulary_key_follows_the_ids,
    one_seed_gives_one_encoder_and_one_pass,
    a_new_process_gives_the_same_encoder,
    it_touches_no_global_random_state,
    gradients_reach_its_embeddings_and_parameters,
    its_gradients_are_those_of_finite_differences,
    it_leaves_tokens_and_embeddings_as_they_are,
    it_works_in_bfloat16,
    its_state_survives_saving,
    its_state_is_tensors,
)
