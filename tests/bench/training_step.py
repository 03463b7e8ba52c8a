"""A training step against ``transformers.BertModel``, and the share of the machine that it uses.

    python tests/bench/training_step.py --data DIR [--profile]

SST, Quora and STS in one step, MiniLM weights, dropout on, linear heads, cross-entropy, binary cross-entropy and MSE,
fused AdamW. Ours is the step that a run takes with ``sum``; theirs has the same heads and losses in plain PyTorch on
batches padded per task. Both take turns on the same batches; a figure is the median over the batches of
(their time / ours).

The share of the matrix rate is what the products of the real tokens need (forward and backward, nothing for padding)
over the time of our step, by the largest rate at which this machine multiplied float32 matrices between the steps.
``--profile`` prints instead where the time of our step goes.
"""

import tempfile
from pathlib import Path
from statistics import median

from peers import Batch, Padded, Tasks, batches_of, best_rate, forward_flops, lengths_of, products
from steps import WARM, build, course_run, groups, over, parse, parser, show, stepping, take_turns
from torch.profiler import ProfilerActivity, profile

#: Name, batch size, pooling, how pairs are read, bar, the share of the steps that it gets (slow ones get fewer).
SETTINGS = (
    ("batch 8", 8, "pooler", "pair", 2.2, 1.0),
    ("batch 32", 32, "pooler", "pair", 2.0, 0.3),
    ("mean pooling", 8, "mean", "pair", 2.0, 0.5),
    ("joined pairs", 8, "pooler", "joint", 2.0, 0.5),
)
SHARE = 0.58
#: What torch calls the operations of each kind.
KINDS = {
    "matrix products": "mm addmm mkldnn::_linear_pointwise",
    "attention: products and softmax": "bmm baddbmm _softmax _softmax_backward_data",
    "copies, gathers and fills": "copy_ cat fill_ zero_ index index_select index_copy index_add_ scatter_add_",
    "dropout": "random_ ge mul addcmul bernoulli_ native_dropout native_dropout_backward",
    "GELU and norms": "gelu gelu_backward native_layer_norm native_layer_norm_backward",
    "sums of gradients, finiteness": "sum add_ linalg_vector_norm _foreach_norm",
    "AdamW": "_fused_adamw_",
}


def compare(data: Path, steps: int, name: str, batch: int, pooling: str, reads: str, bar: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build(course_run(data, ["sum"], batch=batch, pooling=pooling, reads=reads), folder)
        ours, theirs = stepping(run, state), Tasks(run, Padded("minilm", pooling))
        drawn = groups(state, steps)
        turns = list(zip(drawn, batches_of(run, drawn), strict=True))
        times = take_turns(
            {"ours": lambda turn: ours(turn[0]), "theirs": lambda turn: theirs.step(turn[1]), **products()}, turns
        )
    taken = f"{median(times['ours']) * 1e3:.0f} against {median(times['theirs']) * 1e3:.0f} ms"
    show(f"training step against BertModel, {name}", over(times["theirs"], times["ours"]), at_least=bar, note=taken)
    config = theirs.encoder.bert.config
    needed = [
        3
        * forward_flops(
            [length for tokens, _ in batch.values() for length in lengths_of(tokens)],
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            feed_forward=config.intermediate_size,
            first=pooling != "mean",
            pooler=pooling == "pooler",
        )
        for _, batch in turns[-len(times["ours"]) :]
    ]
    rates, used = best_rate(times), over(needed, times["ours"])
    real, room = (sum(count(batch) for _, batch in turns) / len(turns) for count in (_tokens, _padded))
    note = f"{median(rates) / 1e9:.0f} GFLOP/s, {real:.0f} tokens a step, {room:.0f} padded"
    show(f"share of the matrix rate, {name}", over(used, rates), at_least=SHARE * (name == "batch 8"), note=note)


def profile_step(data: Path, steps: int) -> None:
    """The share of each kind of operation in the time of our step."""
    with tempfile.TemporaryDirectory() as folder:
        run, (state,) = build(course_run(data, ["sum"]), folder)
        step, drawn = stepping(run, state), groups(state, WARM + steps)
        take_turns({"ours": step}, drawn[:WARM])
        with profile(activities=[ProfilerActivity.CPU]) as found:
            take_turns({"ours": step}, drawn[WARM:])
    spent = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in found.key_averages()}
    total = sum(spent.values())
    for kind, names in KINDS.items():
        print(f"{kind:40} {sum(spent.pop(name, 0.0) for name in names.split()) / total:6.1%}")
    print(f"{'everything else':40} {sum(spent.values()) / total:6.1%}")


def _tokens(batch: Batch) -> int:
    return sum(sum(lengths_of(tokens)) for tokens, _ in batch.values())


def _padded(batch: Batch) -> int:
    return sum(max(lengths_of(tokens)) * len(tokens) for tokens, _ in batch.values())


def main() -> None:
    made = parser(__doc__, steps=22)
    made.add_argument("--profile", action="store_true", help="where the time of our step goes")
    given = parse(made)
    if given.profile:
        profile_step(given.data, given.steps)
        return
    for *setting, part in SETTINGS:
        compare(given.data, given.steps if given.quick else max(5, round(given.steps * part)), *setting)


if __name__ == "__main__":
    main()
