"""Tokens to train on: the bundled corpus or the user's file, one held-out split, batches that no layout changes.

The bundled corpus is the source text of the Python standard library of the running interpreter, which is under the
PSF-2.0 licence (https://docs.python.org/3/license.html) and on any machine without a download. It differs between
patch versions of Python, so losses compare only under one sha256.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]
Batch = npt.NDArray[np.int64]

CORPUS_MAX_BYTES = 8_000_000
CORPUS_MIN_BYTES = 5_000_000
HELD_OUT_FRACTION = 0.05
NUM_HELD_OUT_SEQUENCES = 32
"""Sequences behind one validation loss: a fixed number, so that batch sizes and layouts compare."""
SCAN_MAX_TOKENS = 16_000_000
_SKIPPED = frozenset(
    {"test", "tests", "idlelib", "site-packages", "dist-packages", "ensurepip", "lib2to3", "__pycache__", "turtledemo"}
)


class DataError(ValueError):
    """The data cannot be trained on; the message names the file and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The bundled corpus as one file of bytes."""

    path: Path
    num_bytes: int
    num_files: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Tokens (n,), split: the last 5 % are held out."""

    train: Tokens
    held_out: Tokens
    sequence_length: int
    source: str

    def share(self, seed: int, step: int, batch_sequences: int, *, dp_rank: int = 0, dp: int = 1) -> Batch:
        """The rows (batch_sequences / dp, sequence_length + 1) of one step's global batch for one data rank.

        The batch depends on seed and step alone, so every layout sees the same tokens.
        """
        last = len(self.train) - self.sequence_length - 1
        starts = np.random.default_rng((seed, step)).integers(0, last + 1, size=batch_sequences)
        return self.sequences(self.train, np.split(starts, dp)[dp_rank])

    def held_out_sequences(self) -> Batch:
        """The validation set (NUM_HELD_OUT_SEQUENCES, sequence_length + 1), evenly spread over the held-out split."""
        last = len(self.held_out) - self.sequence_length - 1
        starts = np.linspace(0, last, NUM_HELD_OUT_SEQUENCES).astype(np.int64)
        return self.sequences(self.held_out, starts)

    def sequences(self, tokens: Tokens, starts: npt.NDArray[np.int64]) -> Batch:
        rows: Batch = tokens[starts[:, None] + np.arange(self.sequence_length + 1)].astype(np.int64)
        return rows


def bundled_corpus() -> Corpus:
    """The bundled corpus, built on first use and kept in the user's cache.

    Written under a temporary name and renamed, so that processes which build it at once do not meet.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    key = hashlib.sha256(f"{library}|{sysconfig.get_python_version()}|{sys.version}|v1".encode()).hexdigest()[:16]
    folder = cache_folder()
    text, facts = folder / f"stdlib-{key}.txt", folder / f"stdlib-{key}.json"
    try:
        known = json.loads(facts.read_text(encoding="utf-8"))
        if text.stat().st_size == known["num_bytes"]:
            return Corpus(path=text, **known)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    content, num_files = library_text(library)
    known = {"num_bytes": len(content), "num_files": num_files, "sha256": hashlib.sha256(content).hexdigest()}
    _replace(text, content)
    _replace(facts, json.dumps(known).encode())
    return Corpus(path=text, num_bytes=len(content), num_files=num_files, sha256=str(known["sha256"]))


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/tune`` or ``~/.cache/tune``; a temporary folder where that cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (Path(home) / "tune", Path(tempfile.gettempdir()) / f"tune-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise DataError(f"no writable cache folder: tried {home}/tune and {tempfile.gettempdir()}; set XDG_CACHE_HOME")


def library_text(library: Path) -> tuple[bytes, int]:
    """Sources under ``library`` in sorted order, without tests and vendored packages, up to CORPUS_MAX_BYTES."""
    parts: list[bytes] = []
    size = 0
    for folder, names, files in os.walk(library):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in sorted(files):
            if name.endswith(".py") and size < CORPUS_MAX_BYTES:
                parts.append(Path(folder, name).read_bytes())
                size += len(parts[-1])
    content = b"".join(parts)[:CORPUS_MAX_BYTES]
    if len(content) < CORPUS_MIN_BYTES:
        raise DataError(
            f"{library}: {len(content)} bytes of standard library sources, the bundled corpus needs "
            f"{CORPUS_MIN_BYTES}; this Python came without them, so set data.source to a text file"
        )
    return content, len(parts)


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def load(source: str | None, *, vocab: int, sequence_length: int) -> Dataset:
    """Map the tokens of ``source`` (None: the bundled corpus) and split them. DataError says what is wrong."""
    path = bundled_corpus().path if source is None else Path(source)
    tokens = read_tokens(path)
    cut = len(tokens) - int(len(tokens) * HELD_OUT_FRACTION)
    need = sequence_length + 2
    if len(tokens) - cut < need:
        raise DataError(
            f"{path}: {len(tokens)} tokens leave {len(tokens) - cut} to hold out (5 %), and one sequence of "
            f"{sequence_length} needs {need}; use more text or a shorter data.sequence_length"
        )
    highest = int(tokens[:SCAN_MAX_TOKENS].max())
    if highest >= vocab:
        raise DataError(f"{path}: token {highest} is outside the model's vocabulary of {vocab}; raise model.vocab")
    return Dataset(train=tokens[:cut], held_out=tokens[cut:], sequence_length=sequence_length, source=str(path))


def read_tokens(path: Path) -> Tokens:
    """Tokens of a file, memory-mapped: ``.bin`` uint16, ``.npy`` a vector of whole numbers, anything else bytes."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; data.source is a text file, a .bin of uint16 tokens or a .npy")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: empty; data.source must hold text or tokens")
    if path.suffix == ".npy":
        return _numpy_tokens(path)
    if path.suffix == ".bin":
        if path.stat().st_size % 2:
            raise DataError(f"{path}: {path.stat().st_size} bytes are no whole number of uint16 tokens; use .npy")
        return np.asarray(np.memmap(path, dtype="<u2", mode="r"))
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def _numpy_tokens(path: Path) -> Tokens:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path}: not a NumPy array file ({error}); write it with numpy.save") from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise DataError(f"{path}: {tokens.dtype} of shape {tokens.shape}; tokens are a vector of whole numbers")
    if tokens.size == 0:
        raise DataError(f"{path}: empty; data.source must hold text or tokens")
    if int(tokens[:SCAN_MAX_TOKENS].min()) < 0:
        raise DataError(f"{path}: negative tokens; tokens run from 0")
    return np.asarray(tokens)
