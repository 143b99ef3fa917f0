"""The helper's durable record: its private key, and every seed and order that it has used.

Both are in one SQLite file, so a helper that has lost the record has lost the key as well, and
cannot open earlier seals. SQLite flushes every transaction to the disk before it returns.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

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
            rows = self._database.execute("SELECT private FROM key").fetchall()
        if len(rows) != 1:
            raise ValueError(f"the helper's record holds {len(rows)} keys, expected 1")
        return X25519PrivateKey.from_private_bytes(rows[0][0])

    def use(self, secrets: Sequence[bytes], request: bytes) -> list[int]:
        """Record on disk that secrets are used for a request.

        The same request may come again, because a helper may be killed before it has answered.

        Args:
            secrets: seeds of masks, or names of orders; only their hashes are stored.
            request: digest of the request.

        Returns:
            The places of those that another request has used, or that occur twice; if there are
            any, nothing is recorded.
        """
        marks = [hashlib.sha256(secret).digest() for secret in secrets]
        with self._lock, self._database as database:  # undone if anything is raised
            database.execute("BEGIN IMMEDIATE")
            spent, first = [], dict[bytes, int]()
            for place, mark in enumerate(marks):
                query = "SELECT request FROM used WHERE seed = ?"
                row = database.execute(query, (mark,)).fetchone()
                if first.setdefault(mark, place) < place or (row is not None and row[0] != request):
                    spent.append(place)
            if not spent:
                rows = [(mark, request) for mark in marks]
                database.executemany("INSERT OR IGNORE INTO used VALUES (?, ?)", rows)
        return spent

    def close(self) -> None:
        """Close the file."""
        self._database.close()
