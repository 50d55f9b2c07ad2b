"""Quantities as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.space.quantities import QuantityError, duration_s, rate_bytes_per_s, size_bytes, whole_number


@pytest.mark.parametrize(
    "text, expected",
    [("6 GiB", 6 * 2**30), ("80GB", 80e9), ("1.5 MiB", 1.5 * 2**20), ("512kib", 512 * 1024), ("100 B", 100)],
)
def test_sizes(text: str, expected: float) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    "text, expected", [("50 GB/s", 50e9), ("900MB/s", 900e6), ("1 GiB/s", 2**30), ("25 GBps", 25e9)]
)
def test_rates(text: str, expected: float) -> None:
    assert rate_bytes_per_s(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [("6 h", 21600), ("10 min", 600), ("4min", 240), ("90 s", 90), ("1 h 30 min", 5400), ("5 us", 5e-6)],
)
def test_durations(text: str, expected: float) -> None:
    assert duration_s(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "value, expected",
    [("512Ki", 524288), ("100B", 100 * 10**9), ("200M", 200_000_000), ("400k", 400_000), ("1.5B", 1_500_000_000),
     (1.0e6, 1_000_000), ("2Mi", 2**21), (7, 7), ("1_000", 1000)],
)  # fmt: skip
def test_counts(value: object, expected: int) -> None:
    counted = whole_number(value)
    assert counted == expected
    assert isinstance(counted, int)


@pytest.mark.parametrize(
    "read, value, spelling",
    [
        (size_bytes, "6", "6 GiB"),
        (size_bytes, 6, "6 GiB"),
        (size_bytes, "six GiB", "6 GiB"),
        (size_bytes, "-1 GiB", "6 GiB"),
        (size_bytes, "6 parsecs", "6 GiB"),
        (rate_bytes_per_s, "400 Gbit/s", "50 GB/s"),
        (rate_bytes_per_s, "400 Gb/s", "50 GB/s"),
        (rate_bytes_per_s, "50 GB", "50 GB/s"),
        (duration_s, "10", "10 min"),
        (duration_s, 600, "10 min"),
        (duration_s, "10 m", "10 min"),
        (duration_s, ".nan s", "10 min"),
        (whole_number, 2.5, "512Ki"),
        (whole_number, 0, "512Ki"),
        (whole_number, True, "512Ki"),
        (whole_number, [1], "512Ki"),
        (whole_number, float("inf"), "512Ki"),
        (whole_number, "1" * 400, "512Ki"),
    ],
)
def test_what_cannot_be_read_says_what_can(read: object, value: object, spelling: str) -> None:
    with pytest.raises(QuantityError) as caught:
        read(value)  # type: ignore[operator]
    assert spelling in caught.value.next_step


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.integers())))
def test_never_anything_but_a_quantity_error(value: object) -> None:
    for read in (size_bytes, rate_bytes_per_s, duration_s, whole_number):
        with contextlib.suppress(QuantityError):
            assert read(value) > 0
