"""Laws of encoders. Give options that make a small untrained one."""

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
from taskloom.core.testing.subjects import REFUSALS, Subject
from taskloom.core.tokens import Reads, Tokens, arrange

TEXTS = ("a small cat", "the dog, which had waited all day long, ran out into the garden and did not come back", "yes")
OTHERS = ("one cat", "no", "the old house by the sea was sold to somebody from the city last summer")
#: From no word at all to more than an encoder has places for.
EXTREMES = ("", "yes", "word " * 600)


class EncoderTrial(Trial):
    """An encoder that is built from a seed, and the texts it is shown."""

    def __init__(self, subject: Subject, seed: int = 0, asked: Sequence[str] = ()) -> None:
        self.encoder: Encoder = subject.make()
        self.encoder.asked = frozenset(asked)
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
        """What training does."""
        return self.encoder.vectors(self.encoder.embed(tokens), tokens)

    def run(self, step: int, *, training: bool) -> Tensor:
        bind_generator(self.encoder.train(training), new_generator(4, self.device))
        return self.vectors(self.tokens())

    def in_half(self) -> tuple[Tensor, Tensor, Tensor | None]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = self.vectors(self.tokens())
        return found, self.vectors(self.tokens()), None


NewTrial = Callable[..., EncoderTrial]


def _trials(subject: Subject) -> Iterator[tuple[str, NewTrial]]:
    """One; none where an encoder says, at the edge of an option, that its sizes do not go together."""
    try:
        EncoderTrial(subject)
    except REFUSALS:
        if subject.edge:
            return
        raise
    yield f"{len(TEXTS)} texts", partial(EncoderTrial, subject)


@law("encoder", cases=_trials, at_edges=True)
@torch.no_grad()
def tokens_become_one_vector_per_sequence(subject: Subject, new: NewTrial) -> None:
    """Of a batch of one, too; tokens and embeddings stay as they are."""
    trial = new()
    encoder = trial.encoder
    every: tuple[tuple[Reads, int, int], ...] = (("joint", 3, 3), ("single", 3, 3), ("pair", 3, 6), ("single", 1, 1))
    for reads, rows, count in every[:1] if subject.edge else every:
        with given(f"{count} sequences, reads {reads!r}"):
            tokens, untouched = trial.tokens(reads, slice(rows)), trial.tokens(reads, slice(rows))
            embedded = encoder.embed(tokens)
            before = embedded.clone()
            states = encoder.encode(embedded, tokens)
            pooled = encoder.pool(states, tokens)
            packed, whole = [len(tokens.ids), encoder.width], [count, encoder.width]
            for name, found, shape in (
                ("embed", embedded, [len(tokens.ids), embedded.shape[-1]]),
                ("encode", states, packed),
                ("pool", pooled, whole),
            ):
                require(list(found.shape) == shape, f"{name} should give {shape}. Found {list(found.shape)}.")
            require_finite(pooled, "a vector")
            for name, found in (("vectors", encoder.vectors(embedded, tokens)), ("calling it", encoder(tokens))):
                require_same(found, pooled, f"{name} is not the same as one step after another", within=1e-5)
            require_same(embedded, before, "the embeddings were written to")
            for name in ("ids", "lengths", "types"):
                require_same(getattr(tokens, name), getattr(untouched, name), f"the {name} were written to")


@law("encoder")
@torch.no_grad()
def a_sequence_does_not_depend_on_its_batch(subject: Subject) -> None:
    """Neither on the others, however long they are, nor on its place among them."""
    trial = EncoderTrial(subject)
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
def a_long_text_is_truncated_at_max_length_only(subject: Subject) -> None:
    """The batch does that, with room for the special tokens and one more; ``tokenize`` gives every id of a text."""
    encoder = EncoderTrial(subject).encoder
    texts = [" ".join(f"word{n}" for n in range(count)) for count in (1500, 3000)]
    half, whole = (len(ids) for ids in encoder.tokenize(texts))
    require(half < whole, f"tokenize should not truncate: texts of 1500 and 3000 words have {half} and {whole} ids")
    special = encoder.special_tokens
    least = len(special.start + special.middle + special.end) + 1
    words = f"max_length should be at least {least}, for {least - 1} special tokens and one of a text"
    require(encoder.max_length >= least, f"{words}. Found {encoder.max_length}.")


@law("encoder")
def the_vocabulary_key_follows_the_ids(subject: Subject) -> None:
    """Where other options give other ids, the key is another one: ids are kept under it."""
    base: Encoder = subject.make()
    here, key = [list(ids) for ids in base.tokenize(TEXTS)], base.vocabulary_key()
    require(bool(key) and isinstance(key, str), f"vocabulary_key() should be a non-empty string. Found {key!r}.")
    for name, value in subject.other_values():
        with given(f"{name}={value!r}"):
            try:
                other: Encoder = subject.make(**{name: value})
                other.check()
                there = [list(ids) for ids in other.tokenize(TEXTS)]
            except REFUSALS:
                continue
            same = here == there or other.vocabulary_key() != key
            require(same, f"text {TEXTS[0]!r} and others get other ids, and vocabulary_key() is still {key!r}")


def ids_and_weights_of(encoder: Encoder) -> list[str]:
    """Keys, the ids of some texts, alone and together and before it is built, and a digest of what a seed builds."""
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
def its_gradients_are_those_of_finite_differences(subject: Subject, new: NewTrial) -> None:
    """And they reach the embeddings, and the parameters of an encoder that is trainable and of no other."""
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
    few = {} if subject.edge else {name: named[name] for name in (*list(named)[:2], *list(named)[-2:])}
    require_gradient(lambda: (trial.vectors(tokens) * weights).sum(), few)


def _takes(subject: Subject, pooling: str) -> bool:
    encoder: Encoder = subject.make()
    encoder.asked = frozenset({pooling})
    try:
        encoder.check()
    except REFUSALS:
        return False
    return True


@law("encoder")
@torch.no_grad()
def each_part_of_a_batch_is_pooled_as_it_asks(subject: Subject) -> None:
    """Of an encoder that names ``poolings``: in one batch with others or alone, and no two poolings are the same.

    Its weights may lack what one of them needs, which it then refuses.
    """
    ways = [way for way in subject.component.poolings if _takes(subject, way)]  # type: ignore[attr-defined]
    trial = EncoderTrial(subject, asked=ways)
    parts = [trial.tokens() for _ in (None, *ways)]
    for part, way in zip(parts, (None, *ways), strict=True):
        part.poolings = (way,)
    together = torch.split(trial.vectors(Tokens.join(parts)), [len(part) for part in parts])
    for part, found in zip(parts, together, strict=True):
        words = f"pooling {part.poolings[0]!r} in one batch with {', '.join(ways)} gives other vectors than alone"
        require_same(found, trial.vectors(part), words, within=1e-5)
        require_same(found, trial.encoder(part), words, within=1e-5)
    for (one, first), (other, second) in combinations(zip(ways, together[1:], strict=True), 2):
        require(not first.allclose(second), f"poolings {one!r} and {other!r} give the same vectors")


@law("encoder")
def copies_of_its_parameters_get_the_gradients_of_their_parts(subject: Subject) -> None:
    """Of an encoder that says ``takes_copies``: the same vectors, and for each copy what its own part alone gives."""
    trial = EncoderTrial(subject)
    encoder = trial.encoder
    if not encoder.takes_copies:
        return
    tokens = Tokens.join([trial.tokens(), trial.tokens("joint", slice(2))])
    slopes = torch.randn(len(tokens), encoder.width, generator=new_generator(9))
    stacks = {name: p.detach().expand(2, *p.shape).requires_grad_() for name, p in encoder.named_parameters()}
    found = functional_call(encoder, stacks, (tokens,))
    require_same(found, encoder(tokens), "with copies of its parameters it gives other vectors", within=1e-5)
    found.backward(slopes)
    for place, (part, slope) in enumerate(zip(tokens.split(), torch.split(slopes, list(tokens.parts)), strict=True)):
        encoder.requires_grad_().zero_grad()
        encoder(part).backward(slope)
        for name, parameter in encoder.named_parameters():
            own, whole = stacks[name].grad, parameter.grad
            if own is None or whole is None:
                require(own is whole, f"of parameter {name!r} only the copies or only the original has a gradient")
                continue
            words = f"copy {place} of parameter {name!r} has another gradient than its part by itself"
            require_same(own.to_dense()[place], whole.to_dense(), words, within=1e-4)


laws_of_learning("encoder", _trials)
