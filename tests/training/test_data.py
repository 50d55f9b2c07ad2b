"""Tokens: the bundled corpus, the user's files, and batches that do not depend on the layout."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tuner.training import data
from tuner.training.data import DataError


def load(path: Path, *, vocab: int = 256, sequence_length: int = 16) -> data.Dataset:
    return data.load(str(path), vocab=vocab, sequence_length=sequence_length)


def test_the_bundled_corpus_is_cached_and_hashed() -> None:
    corpus = data.bundled_corpus()
    content = corpus.path.read_bytes()
    assert data.CORPUS_MIN_BYTES <= len(content) == corpus.num_bytes <= data.CORPUS_MAX_BYTES
    assert hashlib.sha256(content).hexdigest() == corpus.sha256
    written = corpus.path.stat().st_mtime_ns
    assert data.bundled_corpus() == corpus
    assert corpus.path.stat().st_mtime_ns == written, "the second call reads the cache"


def test_a_damaged_cache_is_made_again() -> None:
    corpus = data.bundled_corpus()
    corpus.path.write_bytes(b"half")
    assert data.bundled_corpus() == corpus
    assert corpus.path.stat().st_size == corpus.num_bytes


def test_library_text_leaves_out_tests_and_vendored_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CORPUS_MIN_BYTES", 1)
    for name, text in {
        "b.py": "B", "a.py": "A", "json/c.py": "C", "test/d.py": "D", "site-packages/e.py": "E", "idlelib/f.py": "F",
        "json/tests/g.py": "G", "ensurepip/h.py": "H", "a.txt": "T",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    assert data.library_text(tmp_path) == (b"ABC", 3)


def test_a_python_without_sources_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set data\.source to a text file"):
        data.library_text(tmp_path)


def test_text_bin_and_npy_give_the_same_tokens(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, size=4000)
    (tmp_path / "a.txt").write_bytes(tokens.astype(np.uint8).tobytes())
    tokens.astype("<u2").tofile(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", tokens)
    sets = [load(tmp_path / f"a.{kind}") for kind in ("txt", "bin", "npy")]
    assert all(len(s.held_out) == 200 and len(s.train) == 3800 for s in sets)
    for other in sets[1:]:
        np.testing.assert_array_equal(other.share(0, 1, 8), sets[0].share(0, 1, 8))
    np.testing.assert_array_equal(np.concatenate((sets[0].train, sets[0].held_out)), tokens)


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_shares_are_the_rows_of_one_global_batch(tmp_path: Path, dp: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(np.random.default_rng(0).bytes(4000))
    dataset = load(path)
    batch = dataset.share(5, 7, 16)
    shares = [dataset.share(5, 7, 16, dp_rank=rank, dp=dp) for rank in range(dp)]
    np.testing.assert_array_equal(np.concatenate(shares), batch)
    assert batch.shape == (16, 17)
    assert not np.array_equal(dataset.share(5, 8, 16), batch)
    assert not np.array_equal(dataset.share(6, 7, 16), batch)


def test_held_out_sequences_are_fixed_and_apart_from_training(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10_000))
    dataset = load(path, vocab=10_000)
    held_out = dataset.held_out_sequences()
    assert held_out.shape == (data.NUM_HELD_OUT_SEQUENCES, 17)
    assert held_out.min() == 9500
    assert held_out.max() == 9999
    assert max(dataset.share(0, step, 64).max() for step in range(40)) < 9500


@pytest.mark.parametrize(
    "name,content,words",
    [
        ("missing.txt", None, "no such file"),
        ("empty.txt", b"", "empty"),
        ("short.txt", b"x" * 300, r"300 tokens leave 15 to hold out \(5 %\), and one sequence of 16 needs 18"),
        ("odd.bin", b"x" * 4001, "4001 bytes are no whole number of uint16 tokens"),
        ("high.bin", b"\xff\xff" * 4000, r"token 65535 is outside the model's vocabulary of 256; raise model\.vocab"),
        ("broken.npy", b"nothing", "not a NumPy array file"),
        ("floats.npy", np.zeros(4000), "float64 of shape .* vector of whole numbers"),
        ("square.npy", np.zeros((4000, 2), dtype=int), r"shape \(4000, 2\)"),
        ("none.npy", np.zeros(0, dtype=int), "empty"),
        ("negative.npy", -np.ones(4000, dtype=int), "negative tokens"),
    ],
)
def test_bad_data_is_one_message(tmp_path: Path, name: str, content: bytes | np.ndarray | None, words: str) -> None:
    path = tmp_path / name
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
