#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A member of a group that is not written in C++: made from docs/wire_protocol.md and
docs/rendezvous.md, with nothing but Python's standard library.

    wire_client_test.py path/to/wire_client_worker

starts a C++ worker as rank 0, joins its group as rank 1, calls it, is called by it, holds an object
there, and leaves together with it.
"""

import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is

import rendezvous
from objects import ACCEPT, REGISTER, REGISTER_EARLY, Session
from values import Signature, Tensor
from wire import RREF_LOST, Caller, Failed, Function, Server

WORKER = ""  # the C++ worker's path
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "wire_protocol.md"
LEASE = 8  # as the C++ worker has it
ENDS_A_HANG = 120

ADD = Function.of("demo::add", "(i8,i8,)->i8")
GREET = Function.of("demo::greet", "(s,)->s")
SCALED = Function.of("demo::scaled", "([f8,],f8,)->[f8,]")
SCALED_SAMPLE = Function.of("scale a sample", "({s,[f8,],},f8,)->{s,[f8,],}")
MIRROR = Function.of("demo::mirror",
                     "([(s,<b,?{s,[f8,],},,[b],>,)],)->[(s,<b,?{s,[f8,],},,[b],>,)]")
DOUBLED = Function.of("demo::doubled", "(t,)->t")
FAIL = Function.of("demo::fail", "(s,)->v")
WAIT_FOR_CANCEL = Function.of("demo::wait_for_cancel", "()->b")
ALIVE = Function.of("demo::counters_alive", "()->i8")
LEND = Function.of("demo::lend", "(i8,)->RN4demo7CounterE")
MAKE_COUNTER = Function.of("remote<demo::Counter>", "(R+N4demo7CounterE,i8,)->v")
COUNTER_ADD = Function.of("demo::Counter::add", "(R>N4demo7CounterE,i8,)->i8")
COUNTER_LABEL = Function.of("demo::Counter::label", "(R>N4demo7CounterE,s,)->s")
SQUARE = Function.of("client.square", "(i8,)->i8")
REPORT = Function.of("sys.report", "(b,u8,)->{b,[i4,],}")
SYS_ALIVE = Function.of("sys.alive", "()->v")


class Client:
    """This process as a member."""

    def __init__(self, place):
        listener = socket.create_server(("127.0.0.1", 0))
        self.server = Server(listener)
        self.server.expose(SQUARE, lambda number: number * number)
        self.server.expose(SYS_ALIVE, lambda: None)
        address = "127.0.0.1:%d" % listener.getsockname()[1]
        self.group = rendezvous.meet(place, 1, 2, "client", address)
        self.server.start(self.group)
        self.worker = self.group.members[0]
        self.caller = Caller(self.group, self.worker)
        self.session = Session(self.caller, self.worker, self.group.self, LEASE)

    def is_idle(self):
        return not self.caller.pending and self.server.serving == 0

    def activity(self):
        return self.caller.started + sum(not name.startswith("sys.") for name in self.server.calls)

    def leave(self):
        finished = False
        while not finished:
            finished, dead = self.caller.call(REPORT, self.is_idle(), self.activity())
        self.session.close()
        self.caller.close()
        self.server.close()
        return dead


class WireClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        path = pathlib.Path(cls.folder.name) / "group"
        cls.process = subprocess.Popen([WORKER, f"file://{path}"])
        cls.addClassCleanup(cls.end_worker)
        cls.client = Client(str(path))

    @classmethod
    def end_worker(cls):
        cls.process.kill()
        cls.process.wait()

    @classmethod
    def tearDownClass(cls):
        """All tests over, both leave."""
        dead = cls.client.leave()
        status = cls.process.wait(timeout=ENDS_A_HANG)
        if dead or status:
            raise AssertionError(f"left without {dead}; the worker ended with {status}")

    def call(self, function, *arguments):
        return self.client.caller.call(function, *arguments)

    def failure(self, function, *arguments):
        with self.assertRaises(Failed) as caught:
            self.call(function, *arguments)
        return caught.exception

    def wait_until(self, condition):
        until = time.monotonic() + ENDS_A_HANG
        while not condition():
            self.assertLess(time.monotonic(), until, "it does not happen")
            time.sleep(0.01)

    def test_numbers_and_texts_are_understood(self):
        self.assertEqual(self.call(ADD, 40, -2), 38)
        self.assertEqual(self.call(GREET, "Grüße"), "hello, Grüße")

    def test_many_calls_may_be_under_way(self):
        replies = [self.client.caller.start(ADD, i, i) for i in range(200)]
        self.assertEqual([reply.result(ENDS_A_HANG) for reply in replies], [2 * i for i in range(200)])

    def test_vectors_and_structs_are_understood(self):
        self.assertEqual(self.call(SCALED, [1.0, -2.5], 2.0), [2.0, -5.0])
        self.assertEqual(self.call(SCALED_SAMPLE, ("row", [1.5]), 4.0), ("row scaled", [6.0]))

    def test_maps_variants_and_optionals_are_understood(self):
        mixed = [("bits", (2, [True, False, True])), ("flag", (0, True)), ("none", (1, None)),
                 ("sample", (1, ("s", [0.25])))]
        self.assertEqual(self.call(MIRROR, mixed), mixed)

    def test_tensors_are_understood(self):
        small = self.call(DOUBLED, Tensor.of_floats([2, 3], [0, 1, 2, 3, 4, 5]))
        self.assertEqual((small.sizes, small.floats()), ([2, 3], [0, 2, 4, 6, 8, 10]))
        # More than a piece: the reply comes in several.
        large = self.call(DOUBLED, Tensor.of_floats([1000, 300], [0.5] * 300_000))
        self.assertEqual((large.sizes, set(large.floats())), ([1000, 300], {1.0}))

    def test_an_exception_arrives_with_its_type_and_text(self):
        error = self.failure(FAIL, "no such row: 17")
        self.assertEqual((error.code, error.kind, error.text), (4, "std::out_of_range", "no such row: 17"))

    def test_an_unknown_function_is_refused(self):
        error = self.failure(Function.of("demo::no_such_function", "()->v"))
        self.assertEqual((error.code, error.kind), (5, ""))
        self.assertIn("demo::no_such_function", error.text)

    def test_another_signature_is_refused(self):
        self.assertEqual(self.failure(Function.of("demo::add", "(i4,i4,)->i4"), 1, 2).code, 6)

    def test_arguments_that_do_not_decode_are_refused(self):
        wrong = Function(ADD.name, Signature("(i8,)->i8"))
        wrong.signature.hash = ADD.signature.hash
        self.assertEqual(self.failure(wrong, 1).code, 10)
        self.assertEqual(self.call(ADD, 1, 2), 3)

    def test_a_function_learns_that_it_is_cancelled(self):
        reply = self.client.caller.start(WAIT_FOR_CANCEL)
        self.client.caller.cancel(reply)
        self.assertIs(reply.result(ENDS_A_HANG), True)

    def test_a_ping_is_answered(self):
        before = self.client.caller.pongs
        self.client.caller.ping()
        self.wait_until(lambda: self.client.caller.pongs > before)

    def test_the_worker_calls_and_pings_the_client(self):
        self.wait_until(lambda: "client.square" in self.client.server.calls)
        self.wait_until(lambda: self.client.server.pings > 3)

    def test_the_leader_of_the_shutdown_asks_whether_the_client_lives(self):
        self.wait_until(lambda: "sys.alive" in self.client.server.calls)

    def test_a_reference_in_a_reply_is_registered_and_accepted(self):
        session = self.client.session
        kind, counter = self.call(LEND, 7)
        self.assertEqual(counter[:3], (self.client.worker.incarnation, self.client.worker.incarnation, 0))

        granted = session.say([(REGISTER if kind == 1 else REGISTER_EARLY, counter), (ACCEPT, counter)])

        self.assertEqual(granted, [1])
        self.assertEqual(self.call(COUNTER_ADD, counter, 1), 8)
        session.release(counter)
        self.wait_until(lambda: self.call(ALIVE) == 0)

    def test_an_object_lives_while_it_is_held_and_no_longer(self):
        session = self.client.session
        began, renewals = time.monotonic(), session.renewals
        counter = session.create(MAKE_COUNTER, 10)
        self.assertEqual(self.call(COUNTER_ADD, counter, 5), 15)
        self.assertEqual(self.call(ALIVE), 1)

        self.wait_until(lambda: session.renewals >= renewals + 3 and time.monotonic() - began > 1.1 * LEASE)

        self.assertEqual(self.call(COUNTER_ADD, counter, 5), 20)
        self.assertEqual(self.call(COUNTER_LABEL, counter, "value "), "value 20")
        session.release(counter)
        self.assertEqual(self.call(ALIVE), 0)
        self.assertEqual(self.failure(COUNTER_ADD, counter, 5).code, RREF_LOST)

    def test_the_document_has_what_this_client_uses(self):
        text = DOCUMENT.read_text()
        functions = [each for each in globals().values() if isinstance(each, Function)]
        self.assertGreater(len(functions), 10)
        for function in functions:
            self.assertIn(f"| `{function.name}` | `{function.signature.text}` |", text)


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main(verbosity=2)
