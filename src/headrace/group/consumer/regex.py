"""Subscriptions by regular expression, with RE2. Pure.

A pattern matches complete names, in linear time. If its length or its memory exceeds a limit, it is
invalid.
"""

from collections.abc import Iterable

from headrace.model.errors import ApiError, ErrorCode

PATTERN_CHARACTERS_MAX = 4_096
_MEMORY_BYTES_MAX = 256 * 1024


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """The matching names, sorted. Raises INVALID_REGULAR_EXPRESSION if the pattern is invalid."""
    # Imported on first use, because few groups need it.
    import re2

    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise _invalid(pattern, f"it has more than {PATTERN_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        # Compile the pattern alone first: a set does not report the reason of an error.
        re2.compile(pattern, options)
        patterns = re2.Set.FullMatchSet(options)
        patterns.Add(pattern)
        patterns.Compile()
    except (re2.error, UnicodeEncodeError) as error:
        raise _invalid(pattern, _reason_of(error)) from None
    return tuple(sorted(name for name in names if patterns.Match(name)))


def _reason_of(error: Exception) -> str:
    reason = error.args[0] if error.args else "it is not valid"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _invalid(pattern: str, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"{pattern[:100]!r} is not a valid RE2 regular expression: {reason}.",
    )
