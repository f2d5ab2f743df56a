"""Stop signals as requests."""

import signal

import pytest

from argbeam.runtime.signals import stop_signals


def test_every_signal_is_collected_and_reported_and_the_handlers_of_before_return() -> None:
    sent, reports = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], list[int]()
    before = [signal.getsignal(number) for number in sent]
    with stop_signals(lambda: reports.append(len(received))) as received:
        for number in sent:
            signal.raise_signal(number)
    assert (received, reports) == (sent, [1, 2, 3])
    assert [signal.getsignal(number) for number in sent] == before


def test_with_only_first_a_second_signal_does_what_it_did_before() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt), stop_signals(list, only_first=True) as received:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGTERM]
