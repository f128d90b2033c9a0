# SPDX-License-Identifier: BSD-3-Clause
"""Values of C++ functions as bytes, by their signature text (docs/wire_protocol.md, "Values").

A Signature reads the text, encodes the arguments of a call and decodes its result. In Python

    numbers, bool, s        are int, float, bool, str
    ?T,                     is None or a T
    <A,B,>                  is a pair of the alternative's index and its value
    (A,B,) and {A,B,}       are tuples
    [T,] and [T], aN        are lists; a map is a list of pairs
    t                       is a Tensor, or None for an undefined one
    R+name, R>name          are the id of an object: a tuple of four numbers
    Rname                   is None, or a pair of its kind (1 or 2) and an id
"""

import re
import struct

NUMBERS = {
    "i1": "<b", "i2": "<h", "i4": "<i", "i8": "<q", "u1": "<B", "u2": "<H", "u4": "<I", "u8": "<Q",
    "f4": "<f", "f8": "<d", "c": "<b",
}
MASK = (1 << 64) - 1


def fnv1a(text):
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 & MASK
    return value


class Tensor:
    """A dense row-major tensor: the number of its element type, its sizes and its bytes."""

    SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2}
    INT64, FLOAT32 = 5, 7
    REQUIRES_GRAD, STRIDED, UNDEFINED, SPARSE = 1, 2, 4, 8

    def __init__(self, dtype, sizes, data, requires_grad=False):
        self.dtype, self.sizes, self.data, self.requires_grad = dtype, list(sizes), data, requires_grad

    @classmethod
    def of_floats(cls, sizes, numbers):
        return cls(cls.FLOAT32, sizes, struct.pack(f"<{len(numbers)}f", *numbers))

    def floats(self):
        assert self.dtype == self.FLOAT32, self.dtype
        return list(struct.unpack(f"<{len(self.data) // 4}f", self.data))

    @classmethod
    def row(cls, tensor):
        if tensor is None:
            return struct.pack("<BBBBQ", 0, cls.UNDEFINED, 0, 0, 0)
        flags = cls.REQUIRES_GRAD if tensor.requires_grad else 0
        return (struct.pack("<BBBBQ", tensor.dtype, flags, len(tensor.sizes), 0, len(tensor.data)) +
                struct.pack(f"<{len(tensor.sizes)}q", *tensor.sizes))

    @classmethod
    def read_table(cls, rows, body, bulk):
        """The tensors of a frame, and where in its body the table ends."""
        tensors, at, start = [], 0, 0
        for _ in range(rows):
            dtype, flags, dimensions, _, size = struct.unpack_from("<BBBBQ", body, at)
            at += 12
            if flags & cls.UNDEFINED:
                tensors.append(None)
                continue
            if flags & (cls.STRIDED | cls.SPARSE):
                raise ValueError("this client takes dense row-major tensors only")
            sizes = struct.unpack_from(f"<{dimensions}q", body, at)
            at += 8 * dimensions
            tensors.append(cls(dtype, sizes, bulk[start:start + size], bool(flags & cls.REQUIRES_GRAD)))
            start += size
        return tensors, at


class Writer:
    def __init__(self):
        self.bytes, self.tensors = bytearray(), []

    def number(self, form, value):
        self.bytes += struct.pack(form, value)

    def text(self, value):
        data = value.encode()
        self.number("<I", len(data))
        self.bytes += data


class Reader:
    def __init__(self, data, tensors=()):
        self.data, self.at, self.tensors = data, 0, list(tensors)

    def take(self, size):
        if self.at + size > len(self.data):
            raise ValueError(f"{size} bytes wanted, {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size:self.at]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self):
        return self.take(self.number("<I")).decode()

    def finish(self):
        if self.at != len(self.data) or self.tensors:
            raise ValueError(f"{len(self.data) - self.at} bytes, {len(self.tensors)} tensors too many")


class Number:
    def __init__(self, form):
        self.form = form

    def write(self, out, value):
        out.number(self.form, value)

    def read(self, source):
        return source.number(self.form)


class Bool:
    def write(self, out, value):
        out.number("<B", 1 if value else 0)

    def read(self, source):
        value = source.number("<B")
        if value > 1:
            raise ValueError(f"a bool of {value}")
        return value == 1


class Text:
    def write(self, out, value):
        out.text(value)

    def read(self, source):
        return source.text()


class Nothing:
    """std::monostate."""

    def write(self, out, _):
        out.number("<B", 0)

    def read(self, source):
        source.number("<B")


class Void:
    def write(self, out, value):
        assert value is None

    def read(self, source):
        return None


class TensorReference:
    def write(self, out, value):
        out.tensors.append(value)

    def read(self, source):
        return source.tensors.pop(0)


class ObjectId:
    """A slot or a target."""

    def write(self, out, value):
        out.bytes += struct.pack("<4Q", *value)

    def read(self, source):
        return struct.unpack("<4Q", source.take(32))


class Reference:
    def write(self, out, value):
        out.number("<B", value[0] if value else 0)
        if value:
            out.bytes += struct.pack("<4Q", *value[1])

    def read(self, source):
        kind = source.number("<B")
        if kind > 2:
            raise ValueError(f"a reference of kind {kind}")
        return (kind, struct.unpack("<4Q", source.take(32))) if kind else None


class Optional:
    def __init__(self, of):
        self.of = of

    def write(self, out, value):
        Bool().write(out, value is not None)
        if value is not None:
            self.of.write(out, value)

    def read(self, source):
        return self.of.read(source) if Bool().read(source) else None


class Variant:
    def __init__(self, alternatives):
        self.alternatives = alternatives

    def write(self, out, value):
        index, held = value
        out.number("<B", index)
        self.alternatives[index].write(out, held)

    def read(self, source):
        index = source.number("<B")
        return index, self.alternatives[index].read(source)


class Tuple:
    """Also an aggregate; one without fields takes a byte."""

    def __init__(self, members, empty_takes_a_byte):
        self.members, self.byte = members, empty_takes_a_byte and not members

    def write(self, out, value):
        if self.byte:
            out.number("<B", 0)
        if len(value) != len(self.members):
            raise ValueError(f"{len(value)} values for {len(self.members)} members")
        for member, each in zip(self.members, value):
            member.write(out, each)

    def read(self, source):
        if self.byte:
            source.number("<B")
        return tuple(member.read(source) for member in self.members)


class Sequence:
    """A count and as many elements, whether they are a block of numbers or not; or a fixed number."""

    def __init__(self, of, count=None):
        self.of, self.count = of, count

    def write(self, out, value):
        if self.count is None:
            out.number("<I", len(value))
        for each in value:
            self.of.write(out, each)

    def read(self, source):
        count = source.number("<I") if self.count is None else self.count
        return [self.of.read(source) for _ in range(count)]


class Enclosing:
    """A type within itself: known once the one around it has been read."""

    type = None

    def write(self, out, value):
        self.type.write(out, value)

    def read(self, source):
        return self.type.read(source)


class Parser:
    """Reads a signature text, type by type."""

    def __init__(self, text):
        self.text, self.at, self.open = text, 0, []

    def take(self, expected):
        if not self.text.startswith(expected, self.at):
            raise ValueError(f"{expected!r} wanted at {self.at} of {self.text}")
        self.at += len(expected)

    def match(self, pattern):
        found = re.compile(pattern).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def members(self, close):
        members = []
        while not self.match(re.escape(close)):
            members.append(self.type())
            self.take(",")
        return members

    def type(self):
        if found := self.match(r"\^(\d+)"):
            within = Enclosing()
            self.open[-int(found[1])].append(within)
            return within
        self.open.append([])
        made = self.new_type()
        for within in self.open.pop():
            within.type = made
        return made

    def new_type(self):
        if found := self.match("[iu][1248]|f[48]|c"):
            return Number(NUMBERS[found[0]])
        for text, simple in {"b": Bool, "s": Text, "t": TensorReference, "0": Nothing}.items():
            if self.match(text):
                return simple()
        if self.match(r"R[+>][A-Za-z0-9_]+"):
            return ObjectId()
        if self.match(r"R[A-Za-z0-9_]+"):
            return Reference()
        if self.match(r"\?"):
            of = Optional(self.type())
            self.take(",")
            return of
        if self.match("<"):
            return Variant(self.members(">"))
        if self.match(r"\("):
            return Tuple(self.members(")"), False)
        if self.match("{"):
            return Tuple(self.members("}"), True)
        if self.match(r"\["):
            of = self.type()
            self.match(",")  # a block of numbers, which has the same bytes
            self.take("]")
            return Sequence(of)
        if found := self.match(r"a(\d+)"):
            return Sequence(self.type(), int(found[1]))
        if self.match(r"d\d+/\d+"):
            return self.type()
        if self.match("@"):
            of = self.type()
            self.take(",")
            return of
        raise ValueError(f"no type at {self.at} of {self.text}")


class Signature:
    def __init__(self, text):
        self.text, self.hash = text, fnv1a(text)
        parser = Parser(text)
        parser.take("(")
        self.parameters = Tuple(parser.members(")"), False)
        parser.take("->")
        self.result = Void() if parser.match("v") else parser.type()
        if parser.at != len(text):
            raise ValueError(f"something follows the result: {text}")


def travelling_name(name):
    """A function's name as it is sent: long ones are cut."""
    if len(name.encode()) <= 128:
        return name
    return name.encode()[:111].decode() + f"#{fnv1a(name):016x}"
