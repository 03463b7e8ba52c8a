"""A judged difference as text and as JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which imports numpy
    from taskloom.runs.analysis.contrasts import Judged

DIGITS = 3
#: The p value below which something is called better or worse.
LEVEL = 0.05


def format_difference(judged: "Judged", digits: int = DIGITS) -> str:
    """Format a difference with its interval, if it has one: ``+0.012 [-0.003, +0.027]``."""
    delta, *interval = difference_texts(judged, digits) or ["—"]
    return f"{delta} [{', '.join(interval)}]" if interval else delta


def difference_texts(judged: "Judged", digits: int = DIGITS) -> list[str]:
    """Return the difference, and the ends of its interval if it has one, rounded as in every output."""
    if judged.contrast.seeds == 0:
        return []
    sure = judged.verdict in ("better", "worse")
    delta = (_with_its_sign if sure else signed)(judged.contrast.delta, digits)
    return [delta, *(_with_its_sign(end, digits) for end in judged.interval or ())]


def _with_its_sign(value: float, digits: int) -> str:
    """Format a number with as many digits as show its sign: an interval should not seem to touch 0.

    >>> _with_its_sign(0.0123, 3), _with_its_sign(-0.00012, 3), _with_its_sign(0, 3)
    ('+0.012', '-0.0001', '+0.000')
    """
    if not value or round(value, digits):
        return signed(value, digits)
    return f"{float(f'{value:.1g}'):+.10f}".rstrip("0") if abs(value) > 1e-10 else signed(0.0, digits)


def signed(value: float, digits: int = DIGITS) -> str:
    """Format a number with its sign.

    >>> signed(-0.00001), signed(0.01249)
    ('+0.000', '+0.012')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def format_p(p: float | None) -> str:
    """Format a p value; one below 0.05 is never rounded up to it.

    >>> format_p(0.0001), format_p(0.034), format_p(0.04999), format_p(0.05), format_p(None)
    ('<0.001', '0.034', '<0.05', '0.050', '')
    """
    if p is None:
        return ""
    if round(p, 3) == LEVEL and p < LEVEL:
        return f"<{LEVEL:g}"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def format_verdict(judged: "Judged") -> str:
    """Format a verdict: *equal* with its margin, a dash if there is no interval."""
    if judged.interval is None:
        return "—"
    return f"equal ±{judged.margin:g}" if judged.verdict == "equal" else judged.verdict


def judged_json(judged: "Judged") -> dict[str, Any]:
    """Return a judged difference as JSON values.

    ``p`` is the p value of the difference, ``p_equal`` that of equality within ``margin``; ``corrected_for`` is the
    number of comparisons in its family.
    """
    contrast = judged.contrast
    return {
        "delta": contrast.delta if contrast.seeds else None,
        "interval": None if judged.interval is None else list(judged.interval),
        "p": judged.p,
        "verdict": judged.verdict,
        "margin": judged.margin,
        "p_equal": judged.p_equal,
        "variance": judged.variance,
        "seeds": contrast.seeds,
        "corrected_for": judged.family,
        **({"why": contrast.why} if contrast.why else {}),
    }
