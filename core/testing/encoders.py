"""Laws of encoders. Their options should make a small untrained one."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from taskloom.core.encoder import Encoder
from taskloom.core.random import bind_generator
from taskloom.core.testing.general import law_of_repeating
from taskloom.core.testing.law import given, law, require
from taskloom.core.testing.learning import Trial, laws_of_learning
from taskloom.core.testing.require import new_generator, require_finite, require_gradient, require_same
from taskloom.core.testing.specimens import REFUSALS, Specimen
from taskloom.core.tokens import Reads, Tokens, arrange

TEXTS = ("a small cat", "the dog, which had waited all day long, ran out into the garden and did not come back", "yes")
OTHERS = ("one cat", "no", "the old house by the sea was sold to somebody from the city last summer")
#: From no word at all to more than an encoder has positions for.
EXTREMES = ("", "yes", "word " * 600)


class EncoderTrial(Trial):
    """An encoder built from a seed, and its input texts."""

    def __init__(self, specimen: Specimen, seed: int = 0, poolings: Sequence[str] = ()) -> None:
        self.encoder: Encoder = specimen.make()
        self.encoder.requested_poolings = frozenset(poolings)
        self.encoder.check()
        self.encoder.build(generator=new_generator(seed))
        self.encoder.eval()

    @property
    def modules(self) -> Sequence[nn.Module]:
        return (self.encoder,)

    def tokens(self, reads: Reads = "single", rows: slice = slice(None), texts: Sequence[str] = TEXTS) -> Tokens:
        columns = [self.encoder.tokenize(texts[rows]), self.encoder.tokenize(OTHERS[rows])]
        return arrange(columns, reads, self.encoder.special_tokens, self.encoder.max_length).to(self.device)

    def vectors(self, tokens: Tokens) -> Tensor:
        """The forward pass of training."""
        return self.encoder.vectors(self.encoder.embed(tokens), tokens)

    def run(self, step: int, *, training: bool) -> Tensor:
        bind_generator(self.encoder.train(training), new_generator(4, self.device))
        return self.vectors(self.tokens())

    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = self.vectors(self.tokens())
        return half, self.vectors(self.tokens()), None


NewTrial = Callable[..., EncoderTrial]


def _trials(specimen: Specimen) -> Iterator[tuple[str, NewTrial]]:
    """One trial; none where an encoder refuses its sizes at the edge of an option."""
    try:
        EncoderTrial(specimen)
    except REFUSALS:
        if specimen.edge:
            return
        raise
    yield f"{len(TEXTS)} texts", partial(EncoderTrial, specimen)


@law("encoder", cases=_trials, at_edges=True)
@torch.no_grad()
def tokens_become_one_vector_per_sequence(specimen: Specimen, new: NewTrial) -> None:
    """Also of a batch of one; tokens and embeddings are not changed."""
    trial = new()
    encoder = trial.encoder
    every: tuple[tuple[Reads, int, int], ...] = (("joint", 3, 3), ("single", 3, 3), ("pair", 3, 6), ("single", 1, 1))
    for reads, rows, count in every[:1] if specimen.edge else every:
        with given(f"{count} sequences, reads {reads!r}"):
            tokens, untouched = trial.tokens(reads, slice(rows)), trial.tokens(reads, slice(rows))
            embedded = encoder.embed(tokens)
            before = embedded.clone()
            states = encoder.encode(embedded, tokens)
            pooled = encoder.pool(states, tokens)
            packed, whole = [len(tokens.ids), encoder.width], [count, encoder.width]
            for name, output, shape in (
                ("embed", embedded, [len(tokens.ids), embedded.shape[-1]]),
                ("encode", states, packed),
                ("pool", pooled, whole),
            ):
                require(list(output.shape) == shape, f"{name} should give {shape}. Found {list(output.shape)}.")
            require_finite(pooled, "a vector")
            for name, output in (("vectors", encoder.vectors(embedded, tokens)), ("calling it", encoder(tokens))):
                require_same(output, pooled, f"{name} is not the same as one step after another", within=1e-5)
            require_same(embedded, before, "the embeddings were written to")
            for name in ("ids", "lengths", "types"):
                require_same(getattr(tokens, name), getattr(untouched, name), f"the {name} were written to")


@law("encoder")
@torch.no_grad()
def a_sequence_does_not_depend_on_its_batch(specimen: Specimen) -> None:
    """Neither on the other sequences, however long they are, nor on its position among them."""
    trial = EncoderTrial(specimen)
    for reads in ("single", "joint"):
        for texts in (TEXTS, EXTREMES):
            tokens = trial.tokens(reads, texts=texts)
            with given(f"sequences of {tokens.lengths.tolist()} tokens, reads {reads!r}"):
                together = trial.vectors(tokens)
                require_finite(together, "a vector")
                for row in range(3):
                    alone = trial.vectors(trial.tokens(reads, slice(row, row + 1), texts))
                    require_same(alone[0], together[row], f"alone, text {row} gets another vector", within=1e-5)
                reverse = trial.vectors(trial.tokens(reads, slice(None, None, -1), texts))
                require_same(reverse.flip(0), together, "in reverse order they get other vectors", within=1e-5)


@law("encoder")
def a_long_text_is_truncated_at_max_length_only(specimen: Specimen) -> None:
    """That is done for the batch, with room for the special tokens and one more; ``tokenize`` gives all ids."""
    encoder = EncoderTrial(specimen).encoder
    texts = [" ".join(f"word{n}" for n in range(count)) for count in (1500, 3000)]
    half, whole = (len(ids) for ids in encoder.tokenize(texts))
    require(half < whole, f"tokenize should not truncate: texts of 1500 and 3000 words have {half} and {whole} ids")
    special = encoder.special_tokens
    least = len(special.start + special.middle + special.end) + 1
    words = f"max_length should be at least {least}, for {least - 1} special tokens and one of a text"
    require(encoder.max_length >= least, f"{words}. Found {encoder.max_length}.")


@law("encoder")
def the_vocabulary_key_follows_the_ids(specimen: Specimen) -> None:
    """Where other options give other ids, the key changes: ids are cached under it."""
    base: Encoder = specimen.make()
    ids_here, key = [list(ids) for ids in base.tokenize(TEXTS)], base.vocabulary_key()
    require(bool(key) and isinstance(key, str), f"vocabulary_key() should be a non-empty string. Found {key!r}.")
    for name, value in specimen.other_values():
        with given(f"{name}={value!r}"):
            try:
                other: Encoder = specimen.make(**{name: value})
                other.check()
                ids_there = [list(ids) for ids in other.tokenize(TEXTS)]
            except REFUSALS:
                continue
            same = ids_here == ids_there or other.vocabulary_key() != key
            require(same, f"text {TEXTS[0]!r} and others get other ids, and vocabulary_key() is still {key!r}")


def ids_and_weights_of(encoder: Encoder) -> list[str]:
    """Its keys, the ids of some texts (alone and together, before it is built), and digests of weights from a seed."""
    lines = [f"vocabulary_key() {encoder.vocabulary_key()!r}", f"fingerprint() {encoder.fingerprint()!r}"]
    for text, ids in zip(TEXTS, encoder.tokenize(TEXTS), strict=True):
        alone = encoder.tokenize([text])[0]
        words = f"text {text!r} has the ids {list(ids)[:5]}… among others and {list(alone)[:5]}… alone"
        require(list(ids) == list(alone), words)
        lines.append(f"ids {list(map(int, ids))} of {text[:40]!r}")
    encoder.check()
    encoder.build(generator=new_generator())
    tensors = {name: tensor for name, tensor in encoder.state_dict().items() if isinstance(tensor, Tensor)}
    return lines + [
        f"{name} {sha256(tensor.detach().float().numpy().tobytes()).hexdigest()[:12]}"
        for name, tensor in tensors.items()
    ]


law_of_repeating("encoder", ids_and_weights_of)


@law("encoder", cases=_trials, at_edges=True)
def its_gradients_are_those_of_finite_differences(specimen: Specimen, new: NewTrial) -> None:
    """They reach the embeddings, and the parameters of a trainable encoder only."""
    trial = new()
    encoder, tokens = trial.encoder.double(), trial.tokens("joint")
    embedded = encoder.embed(tokens)
    start = embedded.detach().requires_grad_()
    # Sums of normalised vectors may be constant, so each coordinate gets a weight of its own.
    weights = torch.randn(len(tokens), encoder.width, generator=new_generator(9), dtype=torch.float64)
    value = (encoder.vectors(start, tokens) * weights).sum()
    gradient = torch.autograd.grad(value, start, allow_unused=True)[0] if value.requires_grad else None
    require(gradient is not None and bool(gradient.any()), "no gradient reaches the embeddings")
    named = {f"parameter {name!r}": p for name, p in encoder.named_parameters() if p.requires_grad}
    if not encoder.trainable:
        require(not named, f"it is not trainable, but {', '.join(list(named)[:3])} requires a gradient")
    elif named:
        require(embedded.requires_grad, "the embeddings carry no gradient to the parameters")
    if encoder.width > 64:  # differences of a large one drown in rounding
        return
    require_gradient(lambda: (encoder.vectors(start, tokens) * weights).sum(), {"embeddings": start})
    few = {} if specimen.edge else {name: named[name] for name in (*list(named)[:2], *list(named)[-2:])}
    require_gradient(lambda: (trial.vectors(tokens) * weights).sum(), few)


def _has_pooling(specimen: Specimen, pooling: str) -> bool:
    """Whether its weights have what the pooling needs."""
    encoder: Encoder = specimen.make()
    encoder.requested_poolings = frozenset({pooling})
    try:
        encoder.check()
    except REFUSALS:
        return False
    return True


@law("encoder")
@torch.no_grad()
def each_part_of_a_batch_is_pooled_as_it_asks(specimen: Specimen) -> None:
    """An encoder's ``poolings`` work in one batch with others as they do alone, and no two are the same.

    Its weights may lack what one of them needs, which it then refuses.
    """
    known = specimen.component.poolings  # type: ignore[attr-defined]
    poolings = [pooling for pooling in known if _has_pooling(specimen, pooling)]
    trial = EncoderTrial(specimen, poolings=poolings)
    parts = [trial.tokens() for _ in (None, *poolings)]
    for part, pooling in zip(parts, (None, *poolings), strict=True):
        part.poolings = (pooling,)
    together = torch.split(trial.vectors(Tokens.join(parts)), [len(part) for part in parts])
    for part, vectors in zip(parts, together, strict=True):
        words = f"pooling {part.poolings[0]!r} in one batch with {', '.join(poolings)} gives other vectors than alone"
        require_same(vectors, trial.vectors(part), words, within=1e-5)
        require_same(vectors, trial.encoder(part), words, within=1e-5)
    for (pooling, vectors), (other, others) in combinations(zip(poolings, together[1:], strict=True), 2):
        require(not vectors.allclose(others), f"poolings {pooling!r} and {other!r} give the same vectors")


@law("encoder")
def copies_of_its_parameters_get_the_gradients_of_their_parts(specimen: Specimen) -> None:
    """``takes_copies``: stacked parameters give the same vectors, and each copy the gradient of its part alone."""
    trial = EncoderTrial(specimen)
    encoder = trial.encoder
    if not encoder.takes_copies:
        return
    tokens = Tokens.join([trial.tokens(), trial.tokens("joint", slice(2))])
    slopes = torch.randn(len(tokens), encoder.width, generator=new_generator(9))
    stacks = {name: p.detach().expand(2, *p.shape).requires_grad_() for name, p in encoder.named_parameters()}
    vectors = functional_call(encoder, stacks, (tokens,))
    require_same(vectors, encoder(tokens), "with copies of its parameters it gives other vectors", within=1e-5)
    vectors.backward(slopes)
    for task, (part, slope) in enumerate(zip(tokens.split(), torch.split(slopes, list(tokens.parts)), strict=True)):
        encoder.requires_grad_().zero_grad()
        encoder(part).backward(slope)
        for name, parameter in encoder.named_parameters():
            own, whole = stacks[name].grad, parameter.grad
            if own is None or whole is None:
                require(own is whole, f"of parameter {name!r} only the copies or only the original has a gradient")
                continue
            words = f"copy {task} of parameter {name!r} has another gradient than its part by itself"
            require_same(own.to_dense()[task], whole.to_dense(), words, within=1e-4)


laws_of_learning("encoder", _trials)
