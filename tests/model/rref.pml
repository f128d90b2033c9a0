/* The protocol of remote references (docs/rref_protocol.md) as a model for spin: one owner O, two users A and B, one
 * object X. A asks O to create X and may pass X to B in a call, at any moment; B may pass it back to A in a call.
 * `run` beside this file has every order of these steps and of the faults below searched.
 *
 * Modelled, step by step as in rref/owner_ledger and rref/holdings:
 *   - the creation, its answer, and its outcome staying unknown;
 *   - sessions: epochs, numbers, one unanswered message at a time, repetition, renewal, "over", the beginning of a new
 *     epoch after it, and the new epoch of a holder that was idle;
 *   - register, register early, release, also together; holds by the program, and by calls made and arrived.
 * Faults: messages overtake each other without limit; every message may be lost, session messages and their answers
 * any number of times; one message (the creation, a session message or an answer) is doubled, which is also what a
 * repetition that comes too soon looks like; a call may time out whatever became of it; one user crashes; one live
 * user that holds or says something is so slow that its lease runs out.
 *
 * Abstracted, and why nothing that matters is lost:
 *   - Time. A lease ends at any moment, with this rule: its holder is not sure of it any more. The cores keep the rule
 *     by arithmetic: the owner counts a lease from when it applied a message, the holder from when it first sent it,
 *     which is earlier. A renewal is sent when the holder is not sure; to renew a sure lease changes nothing here.
 *   - Loss. A message that is lost and repeated is one that takes its time. So only what differs is a step: the loss
 *     of an answer together with the repetition it causes, and the loss of what nobody waits for any more.
 *   - Serials. There is one object, so the set of serials seen is one bit; that it is kept as intervals is a matter of
 *     tests/unit/rref/serial_set_test.cpp. What other objects do to a session (that it exists, is idle, or has had
 *     another epoch before X is created) is in the choice of the first state, and in the renewals.
 *   - Incarnations. A restarted process has another id and is another worker; ids name both workers, so it meets
 *     nothing of this. The owner does not crash: with it everything goes, and holders are told by the transport.
 *   - Replies that carry references, and acceptances: left out; their sender holds until told, as for a call. Local
 *     references of the owner: left out; they only keep X longer.
 *   - A call is not doubled (the RPC layer sees to that). The use of an object is one step: it is an ordinary call,
 *     which waits at the owner while the object is awaited.
 *
 * What is to happen eventually is asserted where nothing can happen any more, in proctype quiet. That every run gets
 * there, if answers are not lost for ever, is a search of its own (ENDS): there are no non-progress cycles.
 *
 * Mutants, each without one part of the protocol: NO_TOMBSTONES, NO_LEASES, NO_REGISTRATION_BEFORE_USE,
 * NO_HOLD_FOR_RECEIVER (rule 3), FORGETS_OVER (an owner that does not remember a session that is over),
 * NO_EPOCH_IN_ID and NO_LEASE_OF_AWAITED (see register_step).
 */

#define A 0
#define B 1
#define OTHER(u) (1 - (u))
#ifndef DOUBLED
#define DOUBLED 1             /* messages; ENDS is searched without, as a single step more does not make it endless */
#endif

mtype = { none, creating, registering, held, lost };  /* what a holder knows of X */
mtype = { absent, awaited, made, failed };            /* X at its owner; failed: those who wait for it were told */
mtype = { no_register, plain, early };                /* the registration in a session message, if any */
mtype = { vacant, request, answer };                  /* what a place in the network contains */
mtype = { not_made, asked, taken, replied, ended };   /* a call that carries X */

typedef Holder {              /* rref/holdings */
  bit alive;
  mtype entry = none;
  bit is_early, handle, waits;  /* X is being registered early; the program has an RRef, and waits for the value */
  unsigned epoch : 3, seq : 4;
  bit q_release;              /* the queue: the release, if any, is before the registration */
  mtype q_register = no_register;
  bit unanswered, u_release;  /* there is a message without an answer, with these steps */
  mtype u_register = no_register;
  bit sure, too_old;          /* the last answer proves that the lease runs; the next will not, as it took too long */
}
typedef Session {             /* rref/owner_ledger; of the holder with the same index */
  bit known, over;
  unsigned epoch : 3, applied : 4;
  bit granted, holds;         /* the last answer; X has this holder */
}
typedef Place {               /* for a session message or its answer */
  mtype is = vacant;
  unsigned epoch : 3, seq : 4;
  mtype reg = no_register;
  bit who, release, over, granted;  /* a message has the steps release and reg; an answer says over, or granted */
}
typedef Call {                /* by the user with the same index, to the other one */
  mtype stage = not_made;
  bit open, is_early;         /* its caller has no outcome yet, and holds X for it */
}

Holder h[2];
Session s[2];
Call call[2];
mtype x = absent;
bit x_expired;                /* X failed because A was not heard of while it was awaited */
bit x_serial_seen;            /* X was created, or released by A, in A's present session */
bit creation_open;            /* A has no outcome of the creation yet */
unsigned creations : 2;       /* in the network; so are the rest: its answer, */
bit created_answer;
Place net[2], spare;          /* the message of each user, and the doubled one */
bit may_crash = 1, may_be_slow = 1, may_double = DOUBLED;

/* The epoch in which X is to be created. In the first state A is in it. */
#define X_EPOCH 2

/* What is remembered for the assertions only. */
bit ran;                      /* the creation ran */
bit given_up;                 /* by a release of A, the end of its session, or because X had expired */
byte over_epoch[2];           /* the last epoch that is over */
byte last_epoch[2], last_seq[2];  /* the last message applied... */
bit last_granted[2];          /* ...and its answer */

hidden byte ok, grant;        /* results within one step */

/* I1: while a holder's lease is sure, what it holds exists; more than that, the owner counts it. */
#define I1_OF(u) (!(h[u].alive && h[u].entry == held && h[u].sure) || (x != absent && s[u].holds))
#define I1 (I1_OF(A) && I1_OF(B))

/* ---- the owner's ledger -------------------------------------------------------------------------------------- */

/* In the epoch in which it is to create X. */
#ifdef NO_EPOCH_IN_ID
#define A_NOT_HEARD (!s[A].known)
#else
#define A_NOT_HEARD (!s[A].known || s[A].epoch < X_EPOCH)
#endif

inline drop_holder(u) {
  s[u].holds = 0;
  if :: !s[A].holds && !s[B].holds -> x = absent; x_expired = 0 :: else fi
}

inline never_created() { if :: x == awaited -> x = failed :: else fi }

inline end_session(u) {
  over_epoch[u] = s[u].epoch;
  s[u].over = 1; s[u].applied = 0; s[u].granted = 0;  /* the last two are not looked at any more */
  drop_holder(u);
  if
  :: u == A && s[A].epoch >= X_EPOCH -> given_up = 1; never_created()
#ifdef NO_EPOCH_IN_ID
  :: u == A && s[A].epoch < X_EPOCH -> never_created()
#endif
  :: else
  fi
#ifdef FORGETS_OVER
  ; s[u].known = 0; s[u].epoch = 0; s[u].over = 0
#endif
}

/* ok: what is said in this epoch counts. */
inline open_session(u, its_epoch) {
  if
  :: !s[u].known || its_epoch > s[u].epoch ->
     if :: s[u].known -> end_session(u) :: else fi;
     if :: u == A -> x_serial_seen = 0 :: else fi;
#ifndef NO_EPOCH_IN_ID
     if :: u == A && its_epoch > X_EPOCH -> given_up = 1; never_created() :: else fi;
#endif
     s[u].known = 1; s[u].epoch = its_epoch; s[u].over = 0; ok = 1
  :: else -> ok = (!s[u].over && its_epoch == s[u].epoch)
  fi
}

inline arrive_creation() {
  open_session(A, X_EPOCH);
#ifndef NO_TOMBSTONES
  ok = ok && !x_serial_seen;
#endif
  if :: ok && x_expired -> x_serial_seen = 1; given_up = 1; ok = 0 :: else fi;  /* who waited for it was told */
  if
  :: ok ->
     assert(X_EPOCH > over_epoch[A]);                 /* I3 */
     assert(!ran);                                    /* I5: at most once */
     assert(!given_up);                               /* I5: not after its creator gave it up */
     assert(x != failed);                             /* I6: who was told that it will not be created was told right */
     ran = 1; x_serial_seen = 1; x = made; s[A].holds = 1;
     created_answer = creation_open
  :: else                                             /* A learns it as an unknown outcome */
  fi
}

/* To register early creates X as awaited, unless its creation was given up. The id says the epoch in which X is to be
 * created: a later epoch means given up, an earlier one, over or not, means nothing (NO_EPOCH_IN_ID: whatever epoch
 * is the present one is taken for it). Until the owner has heard of A in that epoch, what is awaited has a lease of
 * its own (proctype lease_of_awaited), which ends if A died before it could be heard. */
inline register_step(u, how) {
  grant = (x != absent);
  if
  :: !grant && how == early ->
#ifdef NO_EPOCH_IN_ID
     grant = !s[A].known || (!s[A].over && !x_serial_seen);
#else
     grant = A_NOT_HEARD || (s[A].epoch == X_EPOCH && !s[A].over && !x_serial_seen);
#endif
     if :: grant -> x = awaited :: else fi
  :: else
  fi;
  if
  :: grant -> s[u].holds = 1
  :: else ->
     /* I1, rule 3: what a sender holds for a receiver, in a session that is not over, the receiver can register. */
     assert(!(h[OTHER(u)].alive && call[OTHER(u)].open && call[OTHER(u)].stage == taken &&
              h[OTHER(u)].entry != lost && h[OTHER(u)].entry != registering && !(OTHER(u) == A && given_up && !ran) &&
              h[OTHER(u)].epoch > over_epoch[OTHER(u)]))
  fi
}

inline release_step(u) {
#ifdef NO_EPOCH_IN_ID
  if :: u == A -> x_serial_seen = 1; never_created() :: else fi;
#endif
  if :: u == A && s[A].epoch == X_EPOCH -> given_up = 1; x_serial_seen = 1; never_created() :: else fi;
  if :: s[u].holds -> drop_holder(u) :: else fi
}

/* Rule 5. The answer takes the place of the message. */
inline apply(p, u) {
  open_session(u, p.epoch);
  grant = 0;
  if
  :: !ok -> p.over = 1
#ifndef NO_TOMBSTONES
  :: ok && p.seq == s[u].applied -> grant = s[u].granted
  :: ok && p.seq < s[u].applied                       /* its sender has the answer already */
  :: ok && p.seq > s[u].applied + 1 -> assert(false)  /* a holder leaves no gap */
  :: ok && p.seq == s[u].applied + 1 ->
#else
  :: ok ->
#endif
     assert(p.epoch > over_epoch[u]);                 /* I3 */
     assert(p.epoch > last_epoch[u] || p.seq > last_seq[u]);  /* I4: applied at most once */
     if :: p.release -> release_step(u) :: else fi;
     if :: p.reg != no_register -> register_step(u, p.reg) :: else fi;
     s[u].applied = p.seq; s[u].granted = grant;
     last_epoch[u] = p.epoch; last_seq[u] = p.seq; last_granted[u] = grant
  fi;
  p.release = 0; p.reg = no_register; p.granted = grant; p.is = answer;
  if :: !h[u].alive -> clear(p) :: else fi
}

/* ---- a holder ------------------------------------------------------------------------------------------------ */

#ifdef NO_HOLD_FOR_RECEIVER
#define HOLDS(u) (h[u].handle || call[OTHER(u)].stage == taken)
#else
#define HOLDS(u) (h[u].handle || call[OTHER(u)].stage == taken || call[u].open)
#endif
#define CREATION_OPEN(u) (u == A && creation_open)
#define QUEUED(u) (h[u].q_register != no_register || h[u].u_register != no_register)
#define IDLE(u) (h[u].entry == none && !h[u].unanswered && !h[u].q_release && h[u].q_register == no_register)
#define HAS_TO_SAY(u) (!h[u].unanswered && (h[u].q_release || QUEUED(u) || (h[u].entry != none && !h[u].sure)))
#define CAN_START(u) (h[u].entry == held && call[OTHER(u)].stage == taken)
#define CAN_ARRIVE(u) (h[u].alive && call[OTHER(u)].stage == asked)
/* Whether this place has, of the message that is without an answer, the message or the answer. */
#define CURRENT(p, u) (h[u].unanswered && p.is != vacant && p.who == u && p.epoch == h[u].epoch && p.seq == h[u].seq)

/* Rule 4. */
inline forget_if_idle(u) {
  if
  :: h[u].entry != none && !HOLDS(u) && !CREATION_OPEN(u) && !QUEUED(u) ->
     if :: h[u].entry == held -> h[u].q_release = 1 :: else fi;
     h[u].entry = none
  :: else
  fi
}

inline reply_to_call_of(u) { call[u].stage = (call[u].open -> replied : ended) }

/* If X is lost, a call that waited for it fails, and its caller is told. */
inline after_change(u) {
  if :: h[u].entry == lost && call[OTHER(u)].stage == taken -> reply_to_call_of(OTHER(u)) :: else fi;
  forget_if_idle(u)
}

/* Rule 2: X came with a call. */
inline arrive(u) {
  call[OTHER(u)].stage = taken;
  if
  :: h[u].entry == none || (h[u].entry == lost && !CREATION_OPEN(u)) ->
     h[u].is_early = call[OTHER(u)].is_early; h[u].q_register = (h[u].is_early -> early : plain);
#ifdef NO_REGISTRATION_BEFORE_USE
     h[u].entry = held
#else
     h[u].entry = registering
#endif
  :: else
  fi;
  after_change(u)
}

inline clear(p) {
  p.is = vacant; p.who = 0; p.epoch = 0; p.seq = 0; p.release = 0; p.reg = no_register; p.over = 0; p.granted = 0
}

inline copy(from, to) {
  to.is = from.is; to.who = from.who; to.epoch = from.epoch; to.seq = from.seq;
  to.release = from.release; to.reg = from.reg; to.over = from.over; to.granted = from.granted
}

inline send(u) {
  net[u].is = request; net[u].who = u; net[u].epoch = h[u].epoch; net[u].seq = h[u].seq;
  net[u].release = h[u].u_release; net[u].reg = h[u].u_register; net[u].over = 0; net[u].granted = 0
}

inline next_message(u) {
  h[u].seq++;
  h[u].unanswered = 1; h[u].u_release = h[u].q_release; h[u].u_register = h[u].q_register;
  h[u].q_release = 0; h[u].q_register = no_register;
  if :: net[u].is != vacant -> assert(spare.is == vacant); copy(net[u], spare) :: else fi;  /* the other was faster */
  send(u)
}

inline is_answered(u) { h[u].unanswered = 0; h[u].u_release = 0; h[u].u_register = no_register; h[u].too_old = 0 }

/* Rule 6. */
inline begin_epoch(u) {
  is_answered(u);
  h[u].epoch++; h[u].seq = 0; h[u].sure = 0; h[u].q_release = 0;
  h[u].q_register = (h[u].entry == registering -> (h[u].is_early -> early : plain) : no_register);
  if :: h[u].entry == held || h[u].entry == creating -> h[u].entry = lost :: else fi;
  after_change(u)
}

inline on_answer(p, u) {
  if
  :: !CURRENT(p, u)                                   /* an answer it has had already */
  :: CURRENT(p, u) && p.over -> begin_epoch(u)
  :: CURRENT(p, u) && !p.over ->
     assert(p.epoch == last_epoch[u] && p.seq == last_seq[u]);  /* I4: it was applied... */
     assert(p.granted == last_granted[u]);            /* I4: ...and the answer is the first one */
     h[u].sure = !h[u].too_old;
     if :: h[u].u_register != no_register && h[u].entry == registering -> h[u].is_early = 0;
           h[u].entry = (p.granted -> held : lost)
     :: else
     fi;
     is_answered(u); after_change(u)
  fi;
  clear(p)
}

/* ---- the processes: each option is one step ------------------------------------------------------------------ */

proctype owner() {
end: do
  :: d_step { creations > 0 -> creations--; arrive_creation(); assert(I1) }
  :: d_step { net[A].is == request -> apply(net[A], A); assert(I1) }
  :: d_step { net[B].is == request -> apply(net[B], B); assert(I1) }
  :: d_step { spare.is == request && spare.who == A -> apply(spare, A); assert(I1) }
  :: d_step { spare.is == request && spare.who == B -> apply(spare, B); assert(I1) }
  od
}

/* The lease runs out of a user that is dead, idle or in a later epoch; of another one only once. */
proctype lease(bit u) {
end: do
  :: d_step {
       s[u].known && !s[u].over && (may_be_slow || !h[u].alive || h[u].epoch > s[u].epoch || IDLE(u)) ->
       if
       :: h[u].alive && h[u].epoch == s[u].epoch ->
          h[u].sure = 0; h[u].too_old = h[u].unanswered;
          if :: !IDLE(u) -> may_be_slow = 0 :: else fi
       :: else
       fi;
       end_session(u); assert(I1)
     }
  od
}

proctype lease_of_awaited() {
end: do
  :: d_step { x == awaited && A_NOT_HEARD -> x = failed; x_expired = 1 }
  od
}

proctype user(bit u) {
end: do
  /* The conversation with the owner: the next message, or a renewal; the last again, for a lost answer; an answer. */
  :: d_step { HAS_TO_SAY(u) -> next_message(u) }
#ifdef ENDS
  :: atomic { net[u].is == answer && CURRENT(net[u], u) -> send(u) }; progress: skip
#else
  :: d_step { net[u].is == answer && CURRENT(net[u], u) -> send(u) }
#endif
  :: d_step { net[u].is == answer -> on_answer(net[u], u); assert(I1) }
  :: d_step { spare.is == answer && spare.who == u -> on_answer(spare, u); assert(I1) }

  /* A call with X in it is made; the other's arrives, and begins a new epoch if this user was idle for long. */
  :: d_step {
       h[u].handle && call[u].stage == not_made -> call[u].stage = asked; call[u].open = 1;
       call[u].is_early = CREATION_OPEN(u)
     }
  :: d_step { CAN_ARRIVE(u) && !(IDLE(u) && h[u].seq > 0 && !h[u].sure) -> arrive(u) }
  :: d_step { CAN_ARRIVE(u) && IDLE(u) && h[u].seq > 0 -> h[u].epoch++; h[u].seq = 0; h[u].sure = 0; arrive(u) }
  /* Its function starts once X is held, keeps a reference, and may leave something that waits for the value. */
  :: d_step { CAN_START(u) -> h[u].handle = 1; reply_to_call_of(OTHER(u)) }
  :: d_step { CAN_START(u) -> h[u].handle = 1; h[u].waits = 1; reply_to_call_of(OTHER(u)) }
  /* The call's outcome: a reply, or a timeout, after which it may yet be taken, or be lost. */
  :: d_step { call[u].stage == replied -> call[u].open = 0; call[u].stage = ended; forget_if_idle(u) }
  :: d_step { call[u].open && call[u].stage != replied -> call[u].open = 0; forget_if_idle(u) }

  /* The program has the value, or an error; it drops its reference. */
  :: d_step { h[u].waits && x != awaited -> h[u].waits = 0 }
  :: d_step { h[u].handle && !h[u].waits -> h[u].handle = 0; forget_if_idle(u) }

  /* The outcome of the creation: answered, or unknown. */
  :: d_step {
       u == A && created_answer -> created_answer = 0; creation_open = 0;
       if :: h[A].entry == creating -> h[A].entry = held :: else fi;
       forget_if_idle(A); assert(I1)
     }
  :: d_step {
       u == A && creation_open -> created_answer = 0; creation_open = 0;
       if :: h[A].entry == creating -> h[A].entry = lost; h[A].q_release = 1 :: else fi;
       after_change(A)
     }
  od
}

/* Doubles one message; loses what nobody waits for. */
proctype network() {
end: do
  :: d_step { may_double && creations > 0 -> may_double = 0; creations++ }
  :: d_step { may_double && net[A].is != vacant -> may_double = 0; copy(net[A], spare) }
  :: d_step { may_double && net[B].is != vacant -> may_double = 0; copy(net[B], spare) }
  :: d_step { creations > 0 && !creation_open -> creations-- }
  :: d_step { call[A].stage == asked && !call[A].open -> call[A].stage = ended }
  :: d_step { call[B].stage == asked && !call[B].open -> call[B].stage = ended }
  :: d_step { net[A].is != vacant && !h[A].alive -> clear(net[A]) }
  :: d_step { net[B].is != vacant && !h[B].alive -> clear(net[B]) }
  od
}

proctype crash(bit u) {
end:
  d_step {
    may_crash -> may_crash = 0;
    h[u].alive = 0; h[u].entry = none; h[u].is_early = 0; h[u].handle = 0; h[u].waits = 0;
    h[u].epoch = 0; h[u].seq = 0; h[u].q_release = 0; h[u].q_register = no_register; h[u].sure = 0;
    is_answered(u); call[u].open = 0;
    if :: u == A -> creation_open = 0; created_answer = 0 :: else fi;
    if :: call[u].stage == replied -> call[u].stage = ended :: else fi;
    if :: call[OTHER(u)].stage == asked || call[OTHER(u)].stage == taken -> call[OTHER(u)].stage = ended :: else fi;
    if :: net[u].is == answer -> clear(net[u]) :: else fi;
    if :: spare.is == answer && spare.who == u -> clear(spare) :: else fi
  }
}

/* Nothing can happen any more: everybody alive has dropped what it had, unless it waits. */
proctype quiet() {
  timeout ->
  d_step {
    assert(!h[A].waits && !h[B].waits);                       /* I6: nobody waits for what will not be created */
    assert(call[A].stage != taken && call[B].stage != taken); /* I6: nor for its registration */
    assert(x == absent && !s[A].holds && !s[B].holds);        /* I2: X is gone */
    assert(IDLE(A) && IDLE(B))                                /* I2: and its holders remember nothing of it */
  }
}

init {
  atomic {
    h[B].alive = 1; h[B].epoch = 1;
    h[A].alive = 1; h[A].epoch = X_EPOCH; h[A].entry = creating; h[A].handle = 1;
    creation_open = 1; creations = 1;
    over_epoch[A] = 1; last_epoch[A] = 1; last_seq[A] = 1;
    if
    :: true                                           /* O has not heard of A yet */
    :: s[A].known = 1; s[A].epoch = 1; s[A].applied = 1  /* A was idle since it last spoke to O, in another epoch */
    fi;
#ifndef NO_LEASE_OF_AWAITED
    run lease_of_awaited();
#endif
    run owner(); run user(A); run user(B); run network(); run crash(A); run crash(B); run quiet();
#ifndef NO_LEASES
    run lease(A); run lease(B)
#endif
  }
}
