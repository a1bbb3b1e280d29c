"""The memory through which the daemon sees scopes.

A sealed memfd named "inferscope-scopes", mapped shared, which the daemon finds in /proc/PID/maps. All numbers are
little-endian.

    header, 4096 bytes
      0  8 bytes  b"ISSCOPE1"
      8  u32      64, bytes of a record     12  u32  SLOTS, a power of two
     16  u64      bytes of the names' area  24  u64  pid of the process, as it sees itself
     32  u64      lease: until when (CLOCK_MONOTONIC, ns) somebody records; the daemon writes it, again and again, so
                  that a daemon that dies leaves nothing on
     40  u64      records begun             48  u64  bytes of names written
    records, 64 bytes each: number n (from 0) lies in slot n % SLOTS
      0  u64  n + 1, written last and set to 0 first: another value means that the record is being written, or is gone
      8  u64  start, ns of CLOCK_MONOTONIC  16  u64  end
     24  u32  thread (gettid, in its own pid namespace)
     28  u32  name: where it begins in the names' area
     32  u64  id of the scope, from 1        40  u64  id of the scope around it, 0: none
     48  u64  asyncio task, a number from 1; 0: none
     56  u32  attributes, JSON, as name is; NO_NAME: none
     60  u32  0
    names: u16 length in bytes, then UTF-8; each once
"""

import mmap
import os
import platform
import struct
import threading

MAGIC = b"ISSCOPE1"
HEADER, RECORD, SLOTS, NAMES = 4096, 64, 4096, 256 * 1024
NO_NAME = 0xFFFFFFFF
LONGEST = 1024  # bytes of a name; more is cut off
MOST_NAMES = 10_000

_BODY = struct.Struct("<QQIIQQQII")
_LEASE, _BEGUN, _NAMED = 4, 5, 6  # as 64-bit words of the header

# fcntl.h and linux/memfd.h; older Pythons lack some of the names.
_F_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4


# x86-64 keeps stores in their order.
_STORES_KEEP_ORDER = platform.machine() in ("x86_64", "AMD64")


class Ring:
    """The memory of one process. Methods are called under the caller's lock, except for words[4] and `recording`."""

    def __init__(self):
        """Makes the memory; raises OSError or AttributeError where the system has no memfd."""
        import fcntl

        size = HEADER + SLOTS * RECORD + NAMES
        fd = os.memfd_create("inferscope-scopes", getattr(os, "MFD_CLOEXEC", 1) | getattr(os, "MFD_ALLOW_SEALING", 2))
        try:
            os.ftruncate(fd, size)
            # A file that cannot shrink cannot end a reader with SIGBUS, so the daemon maps no other.
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
            # Before it is mapped: then the daemon may find it at any time.
            os.pwrite(fd, struct.pack("<8sIIQQ", MAGIC, RECORD, SLOTS, NAMES, os.getpid()), 0)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.words = memoryview(self._map).cast("Q")
        self._names = {}
        self._n = 0
        self._order = threading.Lock()  # a child after a fork makes a ring, and with it a lock, of its own

    def write(self, start, end, thread, name, number, parent, task, attributes):
        """Writes a record; times are ns of CLOCK_MONOTONIC, attributes is JSON or None."""
        n = self._n
        self._n = n + 1
        at = HEADER + n % SLOTS * RECORD
        word = at // 8
        self.words[word] = 0
        self.words[_BEGUN] = n + 1
        self._fence()
        _BODY.pack_into(self._map, at + 8, start, end, thread, self._intern(name), number, parent, task,
                        NO_NAME if attributes is None else self._intern(attributes, 2), 0)
        self._fence()
        self.words[word] = n + 1

    def _fence(self):
        """Keeps stores before it before those after it, where the processor does not do that by itself.

        What was stored before a lock is released is seen before the release, and what is stored after it is acquired
        again after that; arm64 keeps a release and an acquisition (STLR, LDAR) in their order.
        """
        if not _STORES_KEEP_ORDER:
            with self._order:
                pass
            with self._order:
                pass

    def _intern(self, name, share=1):
        """Returns where name begins in the names' area; NO_NAME where its share of that, a whole or a half, is full.

        Attributes may differ each time: they get half of the room, so that names find some left.
        """
        at = self._names.get(name)
        if at is None:
            at = self._append(name.encode("utf-8", "replace")[:LONGEST], share)
            if at != NO_NAME:
                self._names[name] = at
        return at

    def _append(self, name, share):
        used = self.words[_NAMED]
        if used + 2 + len(name) > NAMES // share or len(self._names) > MOST_NAMES // share:
            return NO_NAME
        struct.pack_into(f"<H{len(name)}s", self._map, HEADER + SLOTS * RECORD + used, len(name), name)
        self.words[_NAMED] = used + 2 + len(name)
        return used
