"""A judged difference as text and as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which imports numpy
    from taskloom.runs.analysis.contrasts import Judged

DIGITS = 3
#: The p value below which something is called better or worse.
LEVEL = 0.05


def format_difference(judged: "Judged", digits: int = DIGITS) -> str:
    """A difference with its interval: ``+0.012 [-0.003, +0.027]``; without one where there is none."""
    if judged.contrast.seeds == 0:
        return "—"
    sure = judged.verdict in ("better", "worse")
    delta = (_with_its_sign if sure else signed)(judged.contrast.delta, digits)
    return delta + format_interval(judged, digits)


def format_interval(judged: "Judged", digits: int = DIGITS) -> str:
    if judged.interval is None:
        return ""
    low, high = judged.interval
    return f" [{_with_its_sign(low, digits)}, {_with_its_sign(high, digits)}]"


def _with_its_sign(value: float, digits: int) -> str:
    """A number with more digits where they are needed to see its sign: an interval should not seem to touch 0.

    >>> _with_its_sign(0.0123, 3), _with_its_sign(-0.00012, 3), _with_its_sign(0, 3)
    ('+0.012', '-0.0001', '+0.000')
    """
    return f"{value:+.1g}" if value and not round(value, digits) else signed(value, digits)


def signed(value: float, digits: int = DIGITS) -> str:
    """A number with its sign.

    >>> signed(-0.00001), signed(0.01249)
    ('+0.000', '+0.012')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def format_p(p: float | None) -> str:
    """A p value, not more exact than it is; rounding does not take it over 0.05.

    >>> format_p(0.0001), format_p(0.034), format_p(0.04999), format_p(0.05), format_p(None)
    ('<0.001', '0.034', '<0.05', '0.050', '')
    """
    if p is None:
        return ""
    if round(p, 3) == LEVEL and p < LEVEL:
        return f"<{LEVEL:g}"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def judged_json(judged: "Judged") -> dict[str, Any]:
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
