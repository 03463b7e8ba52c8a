"""``taskloom selftest``."""

import click

from taskloom.runs.cli.common import say_answer
from taskloom.runs.cli.options import json_option


@click.command(short_help="Check whether training works on this machine's device.")
@click.option(
    "--devices",
    default="auto",
    show_default=True,
    metavar="LIST",
    help="What to test: cpu, or GPUs such as cuda:0,cuda:1, one after another; mps and xpu are experimental. auto is "
    "the first GPU, or the CPU where there is none.",
)
@json_option
@click.pass_context
def selftest(context: click.Context, /, devices: str, as_json: bool) -> None:
    """Check in about three minutes whether training works on a device, and print a page fit for an issue.

    The quickstart, made small, is trained on the device: against the CPU, twice, killed and resumed, moved to the CPU,
    short of memory, in bfloat16, and with two cells at once. Then a training step of MiniLM (or of a random encoder of
    its shape) is compared with transformers. Nothing is kept. What cannot be tried here, such as a GPU's memory on a
    machine without a GPU, is said to be not tried.

    Progress goes to stderr and the page to stdout. Exits with 1 if a check failed.

    \b
    Examples:
      taskloom selftest
      taskloom selftest --devices cuda:0,cuda:1
      taskloom selftest --devices mps
      taskloom selftest --json > selftest.json
    """
    from taskloom.runs.api.selftest import selftest as test_devices

    answer = test_devices(devices)
    say_answer(answer, "json" if as_json else "plain")
    context.exit(1 if answer.found.failed else 0)
