# SPDX-License-Identifier: BSD-3-Clause
"""Connections between workers, from both ends, as docs/wire_protocol.md has them."""

import concurrent.futures
import dataclasses
import itertools
import socket
import struct
import threading

from values import Reader, Signature, Tensor, Writer, travelling_name

HELLO, CALL, REPLY, CANCEL, PING, PONG, GOODBYE, PIECE = range(1, 9)
NAMED, FAILED, NOTED, IN_PIECES = 1, 2, 4, 8
MAGIC = 0x0A0D544645578957
VERSION = 3

REMOTE_ERROR, UNKNOWN_FUNCTION, SIGNATURE_MISMATCH, RREF_LOST, BAD_MESSAGE = 4, 5, 6, 8, 10


@dataclasses.dataclass
class Member:
    rank: int
    name: str
    address: str
    incarnation: int


@dataclasses.dataclass
class Group:
    token: int
    me: int
    members: list

    @property
    def self(self):
        return self.members[self.me]


@dataclasses.dataclass
class Function:
    name: str
    signature: Signature

    @classmethod
    def of(cls, name, signature):
        return cls(travelling_name(name), Signature(signature))


class Closed(Exception):
    """The other end closed, or said goodbye with this reason."""


class Failed(Exception):
    """A call ended with an error."""

    def __init__(self, code, kind, text):
        super().__init__(f"code {code} {kind}: {text}")
        self.code, self.kind, self.text = code, kind, text


def value_body(parts, write):
    """The rows, body and bulk of a message whose values `write` puts into a Writer."""
    out = Writer()
    write(out)
    table = b"".join(Tensor.row(each) for each in out.tensors)
    bulk = b"".join(each.data for each in out.tensors if each is not None)
    return len(out.tensors), table + b"".join(parts) + bytes(out.bytes), bulk


class Stream:
    """Frames over a socket. Any thread may send, one receives."""

    def __init__(self, connection):
        self.socket = connection
        self.sending = threading.Lock()
        self.in_pieces = None  # the header of the frame that is coming in pieces
        self.content = bytearray()

    def send(self, kind, flags=0, ident=0, rows=0, body=b"", bulk=b""):
        header = struct.pack("<BBHIQQ", kind, flags, rows, len(body), ident, len(bulk))
        with self.sending:
            self.socket.sendall(header + body + bulk)

    def receive(self):
        """kind, flags, id, the body behind the table, tensors."""
        while True:
            header = struct.unpack("<BBHIQQ", self.exactly(24))
            kind, flags, _, size, _, bulk = header
            if flags & IN_PIECES:
                self.in_pieces, self.content = header, bytearray()
            elif kind != PIECE:
                return self.frame(header, self.exactly(size + bulk))
            elif self.add_piece(header):
                return self.frame(self.in_pieces, bytes(self.content))

    def add_piece(self, header):
        """Whether it was the last one."""
        _, _, _, size, ident, _ = header
        _, _, _, body, owner, bulk = self.in_pieces
        self.content += self.exactly(size)
        if ident != owner or not 0 < size or len(self.content) > body + bulk:
            raise ValueError(f"a piece of {size} bytes for {ident}")
        return len(self.content) == body + bulk

    @staticmethod
    def frame(header, content):
        kind, flags, rows, size, ident, _ = header
        body = content[:size]
        tensors, start = Tensor.read_table(rows, body, content[size:])
        return kind, flags & ~IN_PIECES, ident, body[start:], tensors

    def exactly(self, size):
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise Closed("closed")
            data += part
        return bytes(data)

    def say_hello(self, group, to=None):
        out = Writer()
        features = 1 << 63  # one that nobody has: it is to be ignored
        out.bytes += struct.pack("<HHQQiQ", VERSION, VERSION, features, group.token, group.self.rank,
                                 group.self.incarnation)
        out.text(group.self.name)
        out.bytes += struct.pack("<iQ", to.rank if to else 0, to.incarnation if to else 0)
        out.bytes += b"a field of a later version"
        self.send(HELLO, ident=MAGIC, body=bytes(out.bytes))

    def hear_hello(self, group):
        """The member that spoke, and the rank and incarnation it spoke to."""
        kind, _, ident, body, _ = self.receive()
        if kind == GOODBYE:
            raise Closed(body.decode())
        if kind != HELLO or ident != MAGIC:
            raise ValueError("no hello")
        source = Reader(body)
        version, oldest = source.number("<H"), source.number("<H")
        if min(version, VERSION) < max(oldest, VERSION):
            raise ValueError(f"no common version: {oldest} to {version}")
        source.number("<Q")  # features: this client has none
        token, rank, incarnation = source.number("<Q"), source.number("<i"), source.number("<Q")
        name = source.text()
        to = source.number("<i"), source.number("<Q")
        member = group.members[rank] if 0 <= rank < len(group.members) else None
        if token != group.token or not member or (member.name, member.incarnation) != (name, incarnation):
            raise ValueError(f"no member: {name}")
        return member, to

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end was quicker
        self.socket.close()


def connect(address):
    host, port = address.split(" ")[0].rsplit(":", 1)  # other ways may follow
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Caller:
    """The calling end of a connection to one member."""

    def __init__(self, group, to):
        self.stream = Stream(connect(to.address))
        self.stream.say_hello(group, to)
        member, _ = self.stream.hear_hello(group)
        if member is not to:
            raise ValueError(f"{member.name} answers for {to.name}")
        self.lock = threading.Lock()
        self.ids = itertools.count(1)
        self.pending = {}  # by id: the future of the reply and the function
        self.numbers = {}  # of the functions named so far, by name and signature
        self.started = 0  # calls of functions that are not reserved
        self.pongs = 0
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def start(self, function, *arguments, seconds=60):
        reply = concurrent.futures.Future()
        with self.lock:
            ident = reply.ident = next(self.ids)
            self.started += 0 if function.name.startswith("sys.") else 1
            self.pending[ident] = reply, function
            key = function.name, function.signature.hash
            fresh = key not in self.numbers
            number = self.numbers.setdefault(key, len(self.numbers))
            prelude = struct.pack("<IHHQ", number, 0, 0, int(seconds * 1e6))
            if fresh:
                name = function.name.encode()
                prelude += struct.pack("<H", len(name)) + name + struct.pack("<Q", function.signature.hash)
            rows, body, bulk = value_body(
                [prelude], lambda out: function.signature.parameters.write(out, arguments))
            # Under the lock: a number must not be used before the call that names it has left.
            self.stream.send(CALL, NAMED if fresh else 0, ident, rows, body, bulk)
        return reply

    def call(self, function, *arguments, seconds=60):
        return self.start(function, *arguments, seconds=seconds).result(timeout=seconds)

    def cancel(self, reply):
        self.stream.send(CANCEL, ident=reply.ident)

    def ping(self):
        self.stream.send(PING, ident=4711)

    def read(self):
        try:
            while True:
                kind, flags, ident, body, tensors = self.stream.receive()
                if kind == PONG:
                    self.pongs += 1
                elif kind == REPLY:
                    self.on_reply(flags, ident, body, tensors)
                else:
                    raise Closed(body.decode() if kind == GOODBYE else f"a frame of kind {kind}")
        except (Closed, OSError) as error:
            self.on_closed(error)

    def on_reply(self, flags, ident, body, tensors):
        with self.lock:
            reply, function = self.pending.pop(ident, (None, None))
        if reply is None:
            return  # to a call that was given up
        source = Reader(body, tensors)
        try:
            if flags & FAILED:
                raise Failed(source.number("<B"), source.text(), source.text())
            result = function.signature.result.read(source)
            source.finish()
            reply.set_result(result)
        except Exception as error:  # whatever is wrong with it is the caller's to know
            reply.set_exception(error)

    def on_closed(self, error):
        with self.lock:
            pending, self.pending = self.pending, {}
        for reply, _ in pending.values():
            reply.set_exception(Closed(str(error)))

    def close(self):
        self.stream.close()
        self.thread.join()


class Server:
    """The serving end of all connections of others: hears hellos, answers pings and calls."""

    def __init__(self, listener):
        self.listener = listener
        self.group = None
        self.functions = {}  # by name: the function and what runs it
        self.pings = 0
        self.calls = []  # the names of the functions that were called
        self.serving = 0  # calls that are not answered yet, reserved functions aside
        self.streams = []
        self.lock = threading.Lock()

    def expose(self, function, run):
        self.functions[function.name] = function, run

    def start(self, group):
        self.group = group
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = Stream(connection)
            with self.lock:
                self.streams.append(stream)
            threading.Thread(target=self.serve, args=(stream,), daemon=True).start()

    def serve(self, stream):
        try:
            self.welcome(stream)
            names = {}
            while True:
                kind, flags, ident, body, tensors = stream.receive()
                if kind == PING:
                    with self.lock:
                        self.pings += 1
                    stream.send(PONG, ident=ident)
                elif kind == CALL:
                    self.answer(stream, names, flags, ident, body, tensors)
                elif kind == GOODBYE:
                    return
                elif kind != CANCEL:  # functions here are too short to be cancelled
                    raise ValueError(f"a frame of kind {kind} from a caller")
        except (Closed, OSError):
            pass
        finally:
            stream.close()

    def welcome(self, stream):
        try:
            _, to = stream.hear_hello(self.group)
            if to != (self.group.self.rank, self.group.self.incarnation):
                raise ValueError("a hello for another worker")
        except ValueError as error:
            stream.send(GOODBYE, body=str(error).encode())
            raise Closed(str(error)) from error
        stream.say_hello(self.group)

    def answer(self, stream, names, flags, ident, body, tensors):
        source = Reader(body, tensors)
        number = source.number("<I")
        source.take(12)  # depth, zero, remaining
        if flags & NAMED:
            names[number] = source.take(source.number("<H")).decode(), source.number("<Q")
        if flags & NOTED:
            source.take(source.number("<H"))
        name, signature = names[number]
        reserved = name.startswith("sys.")
        with self.lock:
            self.calls.append(name)
            self.serving += 0 if reserved else 1
        try:
            self.run(stream, ident, name, signature, source)
        finally:
            with self.lock:
                self.serving -= 0 if reserved else 1

    def run(self, stream, ident, name, signature, source):
        try:
            function, run = self.functions[name]
        except KeyError:
            return self.fail(stream, ident, UNKNOWN_FUNCTION, "", f"the client has no function {name}")
        if signature != function.signature.hash:
            return self.fail(stream, ident, SIGNATURE_MISMATCH, "", f"{name} has another signature")
        try:
            arguments = function.signature.parameters.read(source)
            source.finish()
        except (ValueError, struct.error) as error:
            return self.fail(stream, ident, BAD_MESSAGE, "", str(error))
        try:
            result = run(*arguments)
        except Exception as error:  # what it threw is the answer
            return self.fail(stream, ident, REMOTE_ERROR, type(error).__name__, str(error))
        rows, body, bulk = value_body([], lambda out: function.signature.result.write(out, result))
        stream.send(REPLY, 0, ident, rows, body, bulk)

    def fail(self, stream, ident, code, kind, text):
        out = Writer()
        out.number("<B", code)
        out.text(kind)
        out.text(text)
        stream.send(REPLY, FAILED, ident, 0, bytes(out.bytes))

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self.listener.close()
        with self.lock:
            streams = list(self.streams)
        for stream in streams:
            stream.close()
