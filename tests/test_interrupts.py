"""Ctrl-C, SIGTERM and a closed terminal end a run alike."""

from __future__ import annotations

import signal

import pytest

from fabench.interrupts import SIGNALS, by, interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_is_an_interrupt_within_the_block_and_as_before_after_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with pytest.raises(KeyboardInterrupt) as raised, interrupts():
        signal.raise_signal(number)

    assert by(raised.value) == ("" if number == signal.SIGINT else f" by {number.name}")
    assert signal.getsignal(number) is before


def impatient(ended: list[bool]) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        ended.append(True)


def test_an_impatient_second_signal_does_not_stop_the_ending_in_order() -> None:
    ended: list[bool] = []

    with pytest.raises(KeyboardInterrupt), interrupts():
        impatient(ended)

    assert ended


def test_a_signal_that_is_ignored_stays_so() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a script's `fabench run ... &`
    try:
        with interrupts():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, previous)
