"""Options that list words, such as --fail-on."""

from __future__ import annotations

from collections.abc import Sequence

from fabench.errors import UsageError
from fabench.text import did_you_mean

NONE = "none"


def parse_words(option: str, text: str, what: str, known: Sequence[str]) -> frozenset[str]:
    """The words of a comma-separated list, each one of `known`; no words for 'none' alone.

    Raises UsageError for an unknown word, for 'none' beside others, and for an empty list, which is a script's variable
    that was never set more often than a wish to let everything pass.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == [NONE]:
        return frozenset()
    if not words or NONE in words:
        raise UsageError(f"'{option}' must list {what}, or be '{NONE}' alone, got '{text}'")
    for word in words:
        if word not in known:
            hint = did_you_mean(word, known) or f"; known: {', '.join(known)}, {NONE}"
            raise UsageError(f"'{option}' must list {what}, got '{word}'{hint}")
    return frozenset(words)
