"""The helper's durable record: its private key, and every seed that it has used.

Both are in one SQLite file, so a helper that has lost the record has lost the key as well, and
opens no seal of before. SQLite flushes every transaction to the disk before it returns.
"""

import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fl_app.core.files import sync_folder

_TABLES = """
CREATE TABLE IF NOT EXISTS key (private BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS used (seed BLOB PRIMARY KEY, request BLOB NOT NULL) WITHOUT ROWID;
"""


class Ledger:
    """The record of one helper; any number of threads and processes may share it.

    Args:
        path: of the file; None = in memory, as in simulation.

    Raises:
        ValueError: there is no such file, or it is no record.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is not None and not path.is_file():
            raise ValueError(
                f"{path} must be the helper's record, which `python -m fl_app.field helper --new` "
                "writes: without it the helper has no key"
            )
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            path or ":memory:", isolation_level=None, check_same_thread=False, timeout=60.0
        )
        try:
            self._database.execute("PRAGMA journal_mode=DELETE")
            self._database.execute("PRAGMA synchronous=EXTRA")
            self._database.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise ValueError(f"{path} must be the helper's record: {error}") from None

    @classmethod
    def create(cls, path: Path) -> "Ledger":
        """Write a new record with a new key, which only this user may read.

        Raises:
            FileExistsError: the file exists.
        """
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        sync_folder(path.parent)
        ledger = cls(path)
        private = X25519PrivateKey.generate().private_bytes_raw()
        ledger._database.execute("INSERT INTO key VALUES (?)", (private,))
        return ledger

    @property
    def private_key(self) -> X25519PrivateKey:
        """The helper's private key.

        Raises:
            ValueError: the record has none.
        """
        with self._lock:
            found = self._database.execute("SELECT private FROM key").fetchall()
        if len(found) != 1:
            raise ValueError(f"the helper's record holds {len(found)} keys, expected 1")
        return X25519PrivateKey.from_private_bytes(found[0][0])

    def use(self, seeds: Sequence[bytes], request: bytes) -> list[int]:
        """Note that seeds are used for a request, on disk before this returns.

        The same request may come again, because a helper may be killed before it has answered.

        Args:
            seeds: of the masks; only their hashes are kept.
            request: digest of the request.

        Returns:
            The places of seeds that another request has used, or that occur twice; then nothing
            was noted.
        """
        marks = [_mark(seed) for seed in seeds]
        first = {mark: place for place, mark in reversed([*enumerate(marks)])}
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                spent = [
                    place
                    for place, mark in enumerate(marks)
                    if first[mark] < place or self._request_of(mark) not in (None, request)
                ]
                if not spent:
                    self._database.executemany(
                        "INSERT OR IGNORE INTO used VALUES (?, ?)",
                        [(mark, request) for mark in marks],
                    )
                self._database.execute("ROLLBACK" if spent else "COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        return spent

    def count(self) -> int:
        """Number of seeds that were used."""
        with self._lock:
            number: int = self._database.execute("SELECT count(*) FROM used").fetchone()[0]
        return number

    def check_writable(self) -> None:
        """Write a seed, and take it back.

        Raises:
            sqlite3.Error: the record cannot be written.
        """
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.execute("INSERT INTO used VALUES (?, ?)", (b"", b""))
            finally:
                self._database.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _request_of(self, mark: bytes) -> bytes | None:
        found = self._database.execute(
            "SELECT request FROM used WHERE seed = ?", (mark,)
        ).fetchone()
        return None if found is None else bytes(found[0])


def _mark(seed: bytes) -> bytes:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(seed)
    return digest.finalize()
