#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the seeds of the fuzz targets into corpus/<target>/seed_*; findings beside them stay.

    tests/fuzz/make_corpus.py

Written by hand from docs/wire_protocol.md and docs/rendezvous.md rather than with Weft's own encoder, so that seeds of an
older format stay what they were: to the decoders they are one more kind of wrong input.
"""

import pathlib
import struct
import zlib

HELLO, CALL, REPLY, CANCEL, PING, PONG, GOODBYE = range(1, 8)
NAMED, FAILED = 1, 2
MAGIC = 0x0A0D544645578957
GRAD, STRIDED, UNDEFINED, SPARSE, COALESCED, CARRIED = 1, 2, 4, 8, 16, 32
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2}
FLOAT, LONG = 7, 5


def write(target, seeds):
    folder = pathlib.Path(__file__).parent / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("seed_*"):
        old.unlink()
    for name, data in seeds.items():
        (folder / f"seed_{name}").write_bytes(data)


def text(value):
    return struct.pack("<I", len(value)) + value


def frame(kind, flags=0, ident=0, body=b"", table=(), bulk=b""):
    body = b"".join(table) + body
    return struct.pack("<BBHIQQ", kind, flags, len(table), len(body), ident, len(bulk)) + body + bulk


# Rows of the tensor table.
def row(dtype, sizes, strides=None, flags=0, bytes_=None, sparse=0):
    span = 1
    for i, size in enumerate(sizes):
        if strides is None:
            span *= size
        elif size:
            span += (size - 1) * strides[i]
    if 0 in sizes:
        span = 0
    if bytes_ is None:
        bytes_ = 0 if flags & SPARSE else span * SIZES.get(dtype, 1)
    flags |= STRIDED if strides is not None else 0
    lists = [*sizes, *(strides or [])]
    return struct.pack("<BBBBQ", dtype, flags, len(sizes), sparse, bytes_) + struct.pack(
        f"<{len(lists)}q", *lists)


def carried(dtype, sizes, carrier, place, strides=None):
    return row(dtype, sizes, strides, CARRIED) + struct.pack("<BB", carrier, len(place)) + place


def undefined_row():
    return struct.pack("<BBBBQ", 0, UNDEFINED, 0, 0, 0)


def filled(*rows):
    n = sum(struct.unpack_from("<Q", r, 4)[0] for r in rows)
    return bytes(i % 251 for i in range(n))


def sparse(sizes, nonzeros, dense=(), flags=COALESCED, dtype=FLOAT):
    rows = [row(dtype, [*sizes, *dense], flags=SPARSE | flags, sparse=len(sizes)),
            row(LONG, [len(sizes), len(nonzeros)]), row(dtype, [len(nonzeros), *dense])]
    indices = b"".join(struct.pack("<q", at[d]) for d in range(len(sizes)) for at in nonzeros)
    return rows, indices + filled(rows[2])


def hello(name=b"worker1", version=3, oldest=3, features=0, group=4711, sender=1, incarnation=7, to=0,
          to_incarnation=8):
    return (struct.pack("<HHQQiQ", version, oldest, features, group, sender, incarnation) + text(name) +
            struct.pack("<iQ", to, to_incarnation))


def hello_of_version_2(version=2):
    return struct.pack("<HQiQ", version, 4711, 1, 7) + text(b"worker1") + struct.pack("<iQ", 0, 8)


def hello_frame(**fields):
    return frame(HELLO, ident=MAGIC, body=hello(**fields))


def prelude(function=3, depth=1, remaining=60_000_000, name=None, signature=0x1234):
    out = struct.pack("<IHHQ", function, depth, 0, remaining)
    if name is not None:
        out += struct.pack("<H", len(name)) + name + struct.pack("<Q", signature)
    return out


def failed(code=4, kind=b"std::runtime_error", what=b"no such row: 17"):
    return bytes([code]) + text(kind) + text(what)


def hello_seeds():
    usual = hello_frame()
    return {
        "usual": usual,
        "longest_name": hello_frame(name=b"n" * 128),
        "name_too_long": hello_frame(name=b"n" * 129),
        "no_name": hello_frame(name=b""),
        "other_version": frame(HELLO, ident=MAGIC, body=hello_of_version_2()),
        "version_1": frame(HELLO, ident=MAGIC, body=hello_of_version_2(version=1)),
        "version_0": frame(HELLO, ident=MAGIC, body=hello_of_version_2(version=0)),
        "later_version": frame(HELLO, ident=MAGIC, body=hello(version=4) + b"later fields"),
        "later_versions_only": hello_frame(version=9, oldest=8),
        "older_versions_too": hello_frame(oldest=0),
        "oldest_after_version": hello_frame(oldest=4),
        "every_feature": hello_frame(features=(1 << 64) - 1),
        "other_version_short": frame(HELLO, ident=MAGIC, body=struct.pack("<H", 9)),
        "negative_rank": hello_frame(sender=-1, to=-2),
        "twice": usual + usual,
        "then_call": usual + frame(CALL, ident=1, body=prelude()),
        "cut_in_header": usual[:13],
        "cut_in_body": usual[:-3],
        "byte_too_many": frame(HELLO, ident=MAGIC, body=hello() + b"x"),
        "byte_too_few": frame(HELLO, ident=MAGIC, body=hello()[:-1]),
        "empty_body": frame(HELLO, ident=MAGIC),
        "no_magic": frame(HELLO, ident=1, body=hello()),
        "with_flags": frame(HELLO, flags=1, ident=MAGIC, body=hello()),
        "with_tensors": frame(HELLO, ident=MAGIC, body=hello(), table=[undefined_row()]),
        "body_too_large": struct.pack("<BBHIQQ", HELLO, 0, 0, 16385, MAGIC, 0),
        "body_largest": frame(HELLO, ident=MAGIC, body=hello() + bytes(16384 - len(hello()))),
        "name_claims_much": frame(HELLO, ident=MAGIC,
                                  body=struct.pack("<HHQQiQI", 3, 3, 0, 2, 3, 4, 0xFFFFFFFF)),
        "ping_instead": frame(PING, ident=MAGIC),
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "tls": bytes.fromhex("16030100c8010000c40303") + bytes(32),
        "body_alone": hello(),
    }


def frame_seeds():
    dense = row(FLOAT, [2, 3])
    large = row(FLOAT, [70, 60])  # above what is copied from the buffer
    rows, bulk = sparse([4, 5], [(0, 1), (3, 4)], dense=(2,))
    call = frame(CALL, NAMED, 1, prelude(name=b"space::add") + b"args")
    reply = frame(REPLY, 0, 1, b"\x2a" + bytes(7))
    with_tensor = frame(CALL, 0, 2, prelude(), [dense], filled(dense))
    with_large = frame(REPLY, 0, 3, b"tail", [undefined_row(), large, dense, row(8, [0, 7])],
                       filled(large, dense))
    every_kind = b"".join([hello_frame(), call, reply, frame(CANCEL, ident=9), frame(PING, ident=5),
                           frame(PONG, ident=5), frame(GOODBYE, body=b"shutting down")])
    streams = {
        "every_kind": every_kind,
        "call": call,
        "reply": reply,
        "failed": frame(REPLY, FAILED, 4, failed()),
        "tensor": with_tensor,
        "large_tensor": with_large + call,
        "two_large": with_large + with_large,
        "sparse": frame(REPLY, 0, 8, b"", rows, bulk),
        "sparse_without_values": frame(REPLY, 0, 8, b"", rows[:2], bulk[:32]),
        "undefined": frame(CALL, 0, 2, prelude(), [undefined_row()] * 3),
        "claims_body": struct.pack("<BBHIQQ", CALL, 0, 0, 256 << 20, 1, 0) + bytes(40),
        "claims_bulk": struct.pack("<BBHIQQ", REPLY, 0, 1, len(row(1, [1 << 40])), 1, 1 << 40) +
                       row(1, [1 << 40]) + bytes(100),
        "claims_too_much": struct.pack("<BBHIQQ", REPLY, 0, 1, 20, 1, (1 << 40) + 1),
        "most_tensors": frame(REPLY, 0, 1, b"", [undefined_row()] * 4096),
        "too_many_tensors": frame(REPLY, 0, 1, b"", [undefined_row()] * 4097),
        "failed_with_tensor": frame(REPLY, FAILED, 1, failed(), [undefined_row()]),
        "unknown_kind": frame(8),
        "kind_zero": bytes(24),
        "unknown_flag": frame(CALL, 0x82, 1, prelude()),
        "ping_with_body": frame(PING, body=b"x"),
        "table_longer_than_body": struct.pack("<BBHIQQ", REPLY, 0, 2, 14, 1, 0) + bytes(14),
        "bulk_without_table": struct.pack("<BBHIQQ", REPLY, 0, 0, 0, 1, 8) + bytes(8),
        "call_too_short": frame(CALL, 0, 1, b"abc"),
    }
    seeds = {}
    for name, stream in streams.items():
        seeds[name] = b"\x00" + stream
        seeds[name + "_in_pieces"] = b"\x03\x00\x06\x30" + stream
    seeds["hello_first"] = b"\x80" + every_kind
    seeds["hello_first_in_bytes"] = b"\x81\x00" + every_kind
    seeds["hello_first_http"] = b"\x82\x07\x0bGET / HTTP/1.1\r\n\r\n"
    return seeds


def point(x=1, y=0.5, on=1):
    return struct.pack("<idB", x, y, on)


def tree(depth, width=1):
    if depth == 0:
        return struct.pack("<hI", -1, 0)
    return struct.pack("<hI", depth, width) + tree(depth - 1, width) * width


def rich(full, tensors=0):
    parts = [
        b"\x07", text(b"text"),
        struct.pack("<I", 2) + text(b"") + text(b"second"),
        b"\x01" + point() if full else b"\x00",
        b"\x03" + struct.pack("<I", 1) + point() if full else b"\x00\x00",
        struct.pack("<I", 1) + text(b"k") + struct.pack("<Iii", 2, 5, -6),
        struct.pack("<I", 2) + struct.pack("<H", 1) + point() + struct.pack("<H", 2) + point(2),
        struct.pack("<Iii", 2, -3, 4),
        struct.pack("<BBfb", 1, 2, 1.5, -1),
        b"\x01\x05\x00" + b"\x00" + b"\x01\x06\x00",
        struct.pack("<q", 1500), struct.pack("<q", 1_700_000_000_000_000_000),
        struct.pack("<I", 3) + b"\x01\x00\x01",
        struct.pack("<I", tensors) + b"\x01" * tensors,
        tree(2, 2), b"\x00",
    ]
    return b"".join(parts)


def value_seeds():
    what = lambda kind, tensors=0: bytes([kind | tensors << 3])
    long_name = b"f" * 128
    return {
        "rich": what(0, 1) + rich(False),
        "rich_full": what(0, 1) + rich(True),
        "rich_tensors": what(0, 4) + rich(True, 3),
        "rich_no_tensor": what(0, 0) + rich(False),
        "rich_too_many_tensors": what(0, 3) + rich(False),
        "rich_cut": what(0, 1) + rich(True)[:60],
        "rich_byte_too_many": what(0, 1) + rich(False) + b"x",
        "prelude": what(1) + prelude() + b"arguments",
        "prelude_deep": what(1) + prelude(depth=65535, remaining=(1 << 64) - 1),
        "prelude_reserved": what(1) + struct.pack("<IHHQ", 1, 2, 3, 4),
        "prelude_short": what(1) + prelude()[:15],
        "named": what(2) + prelude(name=b"weft::sys::ping") + b"arguments",
        "named_longest": what(2) + prelude(name=long_name),
        "named_too_long": what(2) + prelude(name=long_name + b"f"),
        "named_empty": what(2) + prelude(name=b""),
        "named_cut": what(2) + prelude(name=b"add")[:-2],
        "failed": what(3) + failed(),
        "failed_empty": what(3) + failed(18, b"", b""),
        "failed_code_0": what(3) + failed(0),
        "failed_code_19": what(3) + failed(19),
        "failed_code_20": what(3) + failed(20),
        "failed_claims_much": what(3) + b"\x04" + struct.pack("<I", 1 << 31),
        "tree": what(4) + tree(3, 2),
        "tree_deepest": what(4) + tree(15),
        "tree_too_deep": what(4) + tree(16),
        "tree_claims_much": what(4) + struct.pack("<hI", 1, 0xFFFFFFFF) + bytes(20),
        "maps": what(5) + struct.pack("<IIb", 1, 1, 5) + b"\x00" + tree(2),
        "maps_nothing": what(5) + struct.pack("<IIb", 1, 1, 5) + b"\x01\x00",
        "maps_doubled_keys": what(5) + struct.pack("<II", 1, 2) + b"\x05\x01\x00" * 2,
        "maps_bad_variant": what(5) + struct.pack("<IIb", 1, 1, 5) + b"\x02\x00",
        "numbers": what(6) + struct.pack("<Idd", 2, 1.0, -2.0),
        "numbers_none": what(6) + struct.pack("<I", 0),
        "numbers_claim_much": what(6) + struct.pack("<Id", 0x20000001, 1.0),
        "tensors": what(7, 3) + struct.pack("<I", 3),
        "tensors_none": what(7) + struct.pack("<I", 0),
        "tensors_too_few": what(7, 1) + struct.pack("<I", 2),
        "nothing": what(4),
    }


def tensor_seeds():
    def table(rows, bulk=None, mode=0, count=None):
        data = b"".join(rows)
        bulk = filled(*rows) if bulk is None else bulk
        return struct.pack("<BBH", len(rows) if count is None else count, mode, len(data)) + data + bulk

    seeds = {f"dtype_{d}": table([row(d, [2, 3])]) for d in SIZES}
    rows, bulk = sparse([4, 5], [(0, 1), (3, 4)], dense=(2,))
    plain, plain_bulk = sparse([3], [(0,), (2,)])
    none, none_bulk = sparse([1 << 40, 1 << 20], [])
    outside, outside_bulk = sparse([3], [(0,), (3,)])
    negative, negative_bulk = sparse([3], [(-1,)])
    flat, flat_bulk = sparse([], [()], dense=(2, 2))
    largest = (1 << 63) - 1
    cases = {
        "dtype_0": [row(0, [1], bytes_=1)], "dtype_14": [row(14, [1], bytes_=1)],
        "scalar": [row(FLOAT, [])], "empty": [row(FLOAT, [0])], "empty_large": [row(FLOAT, [0, 1 << 38])],
        "empty_too_large": [row(FLOAT, [0, largest, largest])],
        "dimensions_16": [row(1, [1] * 15 + [3])], "dimensions_17": [row(1, [1] * 17)],
        "transposed": [row(FLOAT, [3, 2], [1, 3])], "expanded": [row(FLOAT, [4, 3], [0, 1])],
        "expanded_large": [row(1, [1 << 20, 1 << 19], [0, 0])],
        "overlapping": [row(FLOAT, [5, 3], [1, 1])], "gaps": [row(FLOAT, [3, 2], [4, 2])],
        "stride_of_one": [row(FLOAT, [1, 2], [largest, 1])],
        "stride_of_none": [row(FLOAT, [0, 2], [largest, largest])],
        "strides_overflow": [row(1, [3, 3], [largest, largest], bytes_=9)],
        "size_negative": [row(1, [-1], bytes_=1)], "stride_negative": [row(1, [2], [-1], bytes_=2)],
        "numel_overflows": [row(1, [1 << 32, 1 << 32], bytes_=0)],
        "bytes_too_many": [row(1, [4], bytes_=5)], "bytes_too_few": [row(FLOAT, [4], bytes_=4)],
        "requires_grad": [row(FLOAT, [2], flags=GRAD)], "integer_grad": [row(LONG, [2], flags=GRAD)],
        "undefined": [undefined_row()],
        "undefined_with_bytes": [struct.pack("<BBBBQ", 0, UNDEFINED, 0, 0, 1)],
        "undefined_with_sparse": [struct.pack("<BBBBQ", 0, UNDEFINED, 0, 1, 0)],
        "dense_coalesced": [row(1, [1], flags=COALESCED)], "dense_with_sparse": [row(1, [1], sparse=1)],
        "unknown_flag": [row(1, [1], flags=32)], "mixed": [row(1, [3]), undefined_row(), row(8, [2])],
        "large": [row(FLOAT, [64, 65])],
    }
    seeds |= {name: table(rows_) for name, rows_ in cases.items()
              if sum(struct.unpack_from("<Q", r, 4)[0] for r in rows_) < 1 << 16}
    seeds |= {
        "sparse": table(rows, bulk), "sparse_1d": table(plain, plain_bulk),
        "sparse_none": table(none, none_bulk), "sparse_0d": table(flat, flat_bulk),
        "sparse_uncoalesced": table(*sparse([3], [(2,), (2,)], flags=0)),
        "sparse_not_coalesced": table(*sparse([3], [(2,), (2,)])),
        "sparse_not_in_order": table(*sparse([3, 3], [(1, 2), (1, 1)])),
        "sparse_grad": table(*sparse([3], [(2,)], flags=GRAD)),
        "sparse_index_outside": table(outside, outside_bulk),
        "sparse_index_negative": table(negative, negative_bulk),
        "sparse_sizes_overflow": table(*sparse([largest, largest], [])),
        "sparse_sizes_zero": table(*sparse([0, largest, largest], [])),
        "sparse_alone": table(rows[:1], b""), "sparse_in_sparse": table([rows[0], *rows], bulk),
        "sparse_wrong_values": table([rows[0], rows[1], row(8, [2, 2])]),
        "sparse_strided_indices": table([plain[0], row(LONG, [1, 2], [2, 1]), plain[2]], plain_bulk),
        "sparse_expanded_values": table([plain[0], plain[1], row(FLOAT, [2], [0])]),
        "sparse_undefined": table([plain[0], undefined_row(), undefined_row()]),
        "made_up": table([row(FLOAT, [100, 100])], b"", mode=1),
        "made_up_pool": table([row(1, [300_000]), row(1, [700])], b"", mode=1),
        "claims_much": table([row(1, [1 << 40])], bytes(64), mode=2),
        "claims_often": table([row(1, [200_000])] * 100, bytes(64), mode=2),
        "carried": table([carried(FLOAT, [100], 1, bytes(12))], b"", mode=129),
        "carried_mixed": table([row(1, [3]), carried(LONG, [2, 3], 1, b"a", [1, 2]), row(1, [5])], mode=128),
        "carried_without_carrier": table([carried(1, [3], 1, b"")], b"", mode=1),
        "carried_too_much": table([carried(1, [5000], 1, b"")], b"", mode=129),
        "carried_long_place": table([carried(1, [3], 1, bytes(33))], b"", mode=129),
        "carried_indices": table([rows[0], carried(LONG, [1, 2], 1, b""), rows[2]], b"", mode=129),
        "rows_missing": table([row(1, [3])], count=2), "row_cut": table([row(1, [3])[:15]], b"", count=1),
    }
    return seeds


def rendezvous_record(key, value, sizes=None):
    data = struct.pack("<II", *(sizes or (len(key), len(value)))) + key + value
    return data + struct.pack("<I", zlib.crc32(data))


def file_seeds():
    header = b"WEFTMEET" + struct.pack("<I", 1)
    member = (text(b"worker1") + text(b"127.0.0.1:4711") + struct.pack("<QQi", 7, 8, 2) +
              text(b"0c9c7a2e-8d5b-4d0e-9b9c-1f0f6f0a7b11/4026531840"))
    usual = rendezvous_record(b"weft/0/1", member)
    confirmed = rendezvous_record(b"weft/0/1/confirmed", struct.pack("<Q", 15))
    return {
        "header": header,
        "half_header": header[:5],
        "usual": header + usual + confirmed,
        "removed": header + usual + rendezvous_record(b"weft/0/1", b""),
        "twice": header + usual + usual,
        "cut_in_sizes": header + usual[:6],
        "cut_in_value": header + usual[:30],
        "cut_in_checksum": header + usual[:-1],
        "wrong_checksum": header + usual[:-1] + b"x",
        "no_key": header + rendezvous_record(b"", b"x"),
        "longest_key": header + rendezvous_record(b"k" * 256, b"x"),
        "key_too_long": header + rendezvous_record(b"k" * 257, b"x"),
        "value_claims_much": header + rendezvous_record(b"weft/0/0", b"x", (8, 1 << 31)),
        "other_version": b"WEFTMEET" + struct.pack("<I", 2) + usual,
        "other_kind": b"name,address\nworker1,127.0.0.1\n",
        "member_alone": member,
        "empty": b"",
    }


def ring_seeds():
    def record(what, size=0, value=0):
        return struct.pack("<BBQ", what, size, value)

    talk = b"".join(record(what, size) for what, size in [(0, 40), (1, 10), (0, 30), (0, 30), (1, 200), (9, 0), (8, 3)] * 3)
    return {
        "talk": talk,
        "written_far": record(0, 9) + record(2, 0, 1 << 63) + record(1, 99) + record(0, 9),
        "read_far": record(0, 9) + record(3, 0, 1 << 40) + record(0, 99) + record(1, 9),
        "overtaken": record(0, 9) + record(5, 10) + record(0, 9), "over_full": record(4, 65) + record(1, 99),
        "finished": record(6, 0, 1) + record(1, 9) + record(0, 9),
        "asks": record(7, 0, 3) + record(0, 9) + record(9) + record(8, 1) + talk,
    }


def arena_seeds():
    def record(what, number=0, offset=0, size=0):
        return struct.pack("<BIQI", what, number, offset, size)

    lend = record(0, size=99_999) + record(2) + record(3)
    return {
        "lend": lend + record(1) + record(5) + record(7),
        "withdraw": record(0, size=99_999) + record(2) + record(7) + record(3),
        "wrong_loan": lend + record(4, 77, 524_288, 9), "wrong_place": lend + record(4, 0, 9, 9),
        "past_end": lend + record(4, 0, 1 << 36, 1) + record(4, 0, (1 << 36) - 1, 2),
        "scribble": (lend + record(6, 0, 0, 3) + record(7)) * 5,
        "scribble_bits": (lend + record(6, 1, 65_536, 0xFFFFFFFF) + record(6, 1, 67_584, 0xFFFFFFFF) + record(7)) * 5,
    }


write("shm_ring", ring_seeds())
write("arena", arena_seeds())
write("file_records", file_seeds())
write("hello", hello_seeds())
write("frame_decoder", frame_seeds())
write("value_decoder", value_seeds())
write("tensor_table", tensor_seeds())
