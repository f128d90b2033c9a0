# SPDX-License-Identifier: BSD-3-Clause
"""Joining a group at a file (docs/rendezvous.md, "Bytes at the meeting place")."""

import fcntl
import functools
import operator
import os
import secrets
import struct
import time
import zlib

from values import Reader, Writer
from wire import Group, Member

HEADER = b"WEFTMEET" + struct.pack("<I", 1)
RECORDS, PRESENCE = 0, 1  # the bytes that the locks cover


class Patience:
    """Pauses that grow from 1 to 50 ms, and an end."""

    def __init__(self, until):
        self.until, self.pause = until, 0.001

    def wait(self):
        if time.monotonic() > self.until:
            raise TimeoutError("the group did not form")
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, 0.05)


class MeetingFile:
    """Values under keys, in a file that all members append to. Present there until it is closed."""

    def __init__(self, path, until):
        self.until = until
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self.try_lock(PRESENCE, fcntl.LOCK_EX):
            if os.pread(self.file, len(HEADER), 0) not in (b"", HEADER):
                raise ValueError(f"{path} is no rendezvous file")
            os.ftruncate(self.file, 0)
        self.lock(PRESENCE, fcntl.LOCK_SH)
        self.lock(RECORDS, fcntl.LOCK_EX)
        if os.fstat(self.file).st_size == 0:
            os.pwrite(self.file, HEADER, 0)
        self.unlock(RECORDS)

    def close(self):
        os.close(self.file)

    def set(self, key, value):
        record = struct.pack("<II", len(key), len(value)) + key.encode() + value
        record += struct.pack("<I", zlib.crc32(record))
        self.lock(RECORDS, fcntl.LOCK_EX)
        os.pwrite(self.file, record, os.fstat(self.file).st_size)
        self.unlock(RECORDS)

    def read(self):
        """All values, by key."""
        self.lock(RECORDS, fcntl.LOCK_SH)
        data = os.pread(self.file, os.fstat(self.file).st_size, 0)
        self.unlock(RECORDS)
        source = Reader(data)
        if source.take(len(HEADER)) != HEADER:
            raise ValueError("no header")
        values = {}
        while source.at < len(data):
            start = source.at
            key_bytes, value_bytes = source.number("<I"), source.number("<I")
            key, value = source.take(key_bytes).decode(), source.take(value_bytes)
            if zlib.crc32(data[start:source.at]) != source.number("<I"):
                raise ValueError(f"a wrong checksum at {start}")
            values[key] = value
            if not value:
                del values[key]
        return values

    def try_lock(self, byte, kind):
        try:
            fcntl.lockf(self.file, kind | fcntl.LOCK_NB, 1, byte)
            return True
        except (BlockingIOError, PermissionError):
            return False

    def lock(self, byte, kind):
        patience = Patience(self.until)
        while not self.try_lock(byte, kind):
            patience.wait()

    def unlock(self, byte):
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, byte)


def host_identity():
    """Where a loopback address of this process can be reached."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
        return f"{boot.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"


def encode_record(name, address, incarnation, world_size):
    out = Writer()
    out.text(name)
    out.text(address)
    token = secrets.randbelow((1 << 64) - 1) + 1
    out.bytes += struct.pack("<QQi", incarnation, token, world_size)
    out.text(host_identity())
    return bytes(out.bytes)


def decode_record(data, rank, world_size):
    """The member and its token."""
    source = Reader(data)
    name, address = source.text(), source.text()
    incarnation, token, its_size = source.number("<Q"), source.number("<Q"), source.number("<i")
    source.text()  # its host: this client's address is a loopback one, and so are the others'
    source.finish()
    if its_size != world_size:
        raise ValueError(f"rank {rank} says the group has {its_size} members")
    return Member(rank, name, address, incarnation), token


def meet(path, rank, world_size, name, address, seconds=60):
    """Joins the first meeting of this process there."""
    until = time.monotonic() + seconds
    file = MeetingFile(path, until)
    try:
        incarnation = secrets.randbelow((1 << 64) - 1) + 1
        file.set(f"weft/0/{rank}", encode_record(name, address, incarnation, world_size))
        return agree(file, rank, world_size, Patience(until))
    finally:
        file.close()


def agree(file, rank, world_size, patience):
    """Reads and confirms the records until everybody has confirmed the same ones."""
    ranks = range(world_size)
    confirmed = None
    while True:
        values = file.read()
        records = [values.get(f"weft/0/{each}") for each in ranks]
        if all(records):
            read = [decode_record(record, each, world_size) for each, record in zip(ranks, records)]
            mine = struct.pack("<Q", functools.reduce(operator.xor, (m.incarnation for m, _ in read)))
            if mine != confirmed:
                file.set(f"weft/0/{rank}/confirmed", mine)
                confirmed = mine
            elif all(values.get(f"weft/0/{each}/confirmed") == mine for each in ranks):
                return Group(read[0][1], rank, [member for member, _ in read])
        patience.wait()
