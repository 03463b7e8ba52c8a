"""A judged difference as text and as JSON."""

from typing import Any

from taskloom.runs.analysis.contrasts import Judged

DIGITS = 3


def format_difference(judged: Judged, digits: int = DIGITS) -> str:
    """A difference with its interval: ``+0.012 [-0.003, +0.027]``; without one where there is none."""
    if judged.contrast.seeds == 0:
        return "—"
    return signed(judged.contrast.delta, digits) + format_interval(judged, digits)


def format_interval(judged: Judged, digits: int = DIGITS) -> str:
    if judged.interval is None:
        return ""
    low, high = judged.interval
    return f" [{signed(low, digits)}, {signed(high, digits)}]"


def signed(value: float, digits: int = DIGITS) -> str:
    """A number with its sign.

    >>> signed(-0.00001), signed(0.01249)
    ('+0.000', '+0.012')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def format_p(p: float | None) -> str:
    """A p value, not more exact than it is.

    >>> format_p(0.0001), format_p(0.034), format_p(None)
    ('<0.001', '0.034', '')
    """
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def judged_json(judged: Judged) -> dict[str, Any]:
    """A judged difference for programs."""
    contrast = judged.contrast
    return {
        "delta": contrast.delta if contrast.seeds else None,
        "interval": None if judged.interval is None else list(judged.interval),
        "p": judged.p,
        "verdict": judged.verdict,
        "variance": contrast.variance,
        "seeds": contrast.seeds,
        **({"why": contrast.why} if contrast.why else {}),
    }
