# SPDX-License-Identifier: BSD-3-Clause
"""What this client holds on one owner: creating, renewing, releasing (docs/wire_protocol.md,
"References")."""

import threading

from wire import Closed, Failed, Function

SESSION = Function.of("sys.rref.session", "({u8,u8,[{u1,{u8,u8,u8,u8,},}],},)->{u1,[u1,],}")
REGISTER, REGISTER_EARLY, RELEASE, ACCEPT = range(4)
APPLIED, OVER = 0, 1


class Session:
    """This process's only session with one owner. Renews until it is closed."""

    def __init__(self, caller, owner, me, lease):
        self.caller, self.owner, self.me, self.lease = caller, owner, me, lease
        self.epoch, self.sequence, self.serial = 1, 0, 0
        self.renewals = 0
        self.lock = threading.Lock()  # one message at a time
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.renew, daemon=True)
        self.thread.start()

    def create(self, constructor, *arguments):
        """Has the owner make an object; returns its id."""
        with self.lock:
            self.serial += 1
            made = (self.owner.incarnation, self.me.incarnation, self.epoch, self.serial)
        try:
            self.caller.call(constructor, made, *arguments)
        except (Failed, Closed):
            self.release(made)
            raise
        return made

    def release(self, made):
        self.say([(RELEASE, made)])

    def say(self, steps):
        with self.lock:
            self.sequence += 1
            status, granted = self.caller.call(SESSION, (self.epoch, self.sequence, steps))
            if status == OVER:
                raise RuntimeError("the owner has ended the session")
            return granted

    def renew(self):
        while not self.closing.wait(self.lease / 3):
            self.say([])
            self.renewals += 1

    def close(self):
        self.closing.set()
        self.thread.join()
