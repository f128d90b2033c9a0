// The protocol of remote references under loss, duplication, reordering, crash and restart: the
// real ledger and the real holdings of two to five workers, driven by one random number generator.
// The invariants are those of docs/rref_protocol.md.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rref/holdings.h"
#include "rref/owner_ledger.h"

namespace weft::rref {
namespace {

using namespace std::chrono_literals;
using base::Duration;
using base::Time;

constexpr Duration kLease = 10s;
constexpr Duration kRepeatAfter = 1s;
constexpr Duration kCallTimeout = 5s;

// Parts of the protocol to leave out.
struct Mutation {
  LedgerFaults ledger;
  bool use_before_registration = false;
};

struct Message {
  enum class Kind { kCreate, kCreated, kSession, kSessionReply, kCall, kCallReply };
  Kind kind;
  Worker from, to;
  RRefId id{};
  uint64_t epoch = 0, number = 0;  // of a session message, or of a call
  SessionMessage session{};
  SessionReply reply{};
  bool early = false;
  bool carries = false;  // whether the call or its reply carries the reference `id`
};

class World;

class Node {
 public:
  Node(World& world, Worker self, const Mutation& mutation)
      : world_(world),
        self_(self),
        mutation_(mutation),
        ledger_(kLease, mutation.ledger),
        holdings_(self, kLease) {}

  // What the program does.
  void make_local();
  std::optional<RRefId> create_on(Worker owner);
  void call(Worker to, const RRefId& id);
  void ask(Worker to);
  void drop(RRefId id);
  void drop_all();

  void deliver(const Message& message);
  void on_time(Time now);

  Worker self() const { return self_; }
  const std::map<RRefId, int>& handles() const { return handles_; }
  bool has_value(const RRefId& id) const { return values_.contains(id); }
  size_t values() const { return values_.size(); }
  const OwnerLedger& ledger() const { return ledger_; }
  const Holdings& holdings() const { return holdings_; }
  std::vector<RRefId> passable() const;

 private:
  struct PendingCall {
    std::optional<RRefId> held;  // the argument, until there is an outcome
    Time deadline;
  };

  void send(Message message);
  void talk();
  void add_hold(const RRefId& id);
  void drop_hold(const RRefId& id);
  bool mine(const RRefId& id) const { return id.owner == self_; }
  void take(const Message& message);
  void use(const Message& message);
  void give_up(const Message& message);
  void settle(uint64_t number);
  void after(const OwnerLedger::Changes& changes);
  void after(const Holdings::Changes& changes);
  void free_if_unreachable(const RRefId& id);

  World& world_;
  Worker self_;
  Mutation mutation_;
  OwnerLedger ledger_;
  Holdings holdings_;
  uint64_t next_local_ = 1;
  uint64_t next_call_ = 1;
  std::map<RRefId, int> handles_;      // the program's
  std::map<RRefId, int> local_holds_;  // on own objects: handles, calls, replies
  std::map<RRefId, int> copies_;       // of handles on others' objects, in calls and replies
  std::set<RRefId> values_;
  std::set<RRefId> never_created_;  // as holders of them were told
  std::map<uint64_t, PendingCall> calls_;
  std::multimap<RRefId, Message> waiting_;  // for a confirmation
  std::map<std::pair<Worker, RRefId>, std::vector<Time>> reply_holds_;
  std::map<Worker, Time> repeat_at_;
  std::map<RRefId, Time> creating_;  // when to give up
};

class World {
 public:
  World(uint64_t seed, const Mutation& mutation) : random_(seed), mutation_(mutation) {
    const size_t count = 2 + pick(4);
    for (size_t i = 0; i < count; ++i) start();
    loss_ = pick(3) == 0 ? 0 : 5 + pick(20);
    duplication_ = pick(3) == 0 ? 0 : 5 + pick(20);
    crashes_ = pick(2) == 0 ? 0 : 1 + pick(3);
  }

  /// Nothing if all invariants held.
  std::optional<std::string> run() {
    for (int step = 0; step < 120 && !violation_; ++step) {
      act();
      check_reachable();
    }
    heal();
    if (!violation_) check_nothing_left();
    return violation_;
  }

  Time now() const { return now_; }
  uint64_t trace() const { return trace_; }

  void send(const Message& message) {
    note(static_cast<uint64_t>(message.kind) * 31 + message.from * 7 + message.to + message.number);
    if (pick(100) < loss_) return;
    network_.push_back(message);
    const bool may_double =
        message.kind != Message::Kind::kCall && message.kind != Message::Kind::kCallReply;
    if (may_double && pick(100) < duplication_) network_.push_back(message);
  }
  bool alive(Worker worker) const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [worker](auto& node) { return node->self() == worker; });
  }
  /// A live worker that was silent for too long.
  bool is_mistaken_for_dead() { return loss_ > 0 && pick(50) == 0; }
  void violate(std::string what) {
    if (!violation_) violation_ = std::move(what);
  }
  size_t pick(size_t below) { return below == 0 ? 0 : random_() % below; }

 private:
  void note(uint64_t what) { trace_ = (trace_ ^ what) * 0x100000001b3u; }
  void start() { nodes_.push_back(std::make_unique<Node>(*this, next_worker_++, mutation_)); }
  Node& some_node() { return *nodes_[pick(nodes_.size())]; }
  Node* find(Worker worker) {
    for (auto& node : nodes_) {
      if (node->self() == worker) return node.get();
    }
    return nullptr;
  }

  void act() {
    switch (pick(15)) {
      case 0:
        return some_node().make_local();
      case 1:
        some_node().create_on(some_node().self());
        return;
      case 2:
      case 3: {
        Node& node = some_node();
        const std::vector<RRefId> held = node.passable();
        if (!held.empty()) node.call(some_node().self(), held[pick(held.size())]);
        return;
      }
      case 4:
        return some_node().ask(some_node().self());
      case 5:
      case 6: {
        Node& node = some_node();
        const std::vector<RRefId> held = node.passable();
        if (!held.empty()) node.drop(held[pick(held.size())]);
        return;
      }
      case 7:
        return pass_time(std::chrono::milliseconds(pick(4000)));
      case 8:
        if (crashes_ > 0 && pick(6) == 0) crash();
        return;
      case 9: {  // shown before it is created
        Node& node = some_node();
        const Worker owner = some_node().self();
        if (const auto id = node.create_on(owner)) node.call(some_node().self(), *id);
        return;
      }
      default:
        return deliver();
    }
  }

  void deliver() {
    if (network_.empty()) return;
    const size_t at = pick(network_.size());
    const Message message = network_[at];
    network_.erase(network_.begin() + static_cast<long>(at));
    if (Node* to = find(message.to)) to->deliver(message);
  }

  void crash() {
    --crashes_;
    if (nodes_.size() < 2) return;
    nodes_.erase(nodes_.begin() + static_cast<long>(pick(nodes_.size())));
    if (pick(2) == 0) start();  // under its old name, as a new incarnation
  }

  void pass_time(Duration by) {
    now_ += by;
    note(static_cast<uint64_t>(by.count()));
    for (auto& node : nodes_) node->on_time(now_);
  }

  // The network loses nothing more and everybody lets go: everything must be freed.
  void heal() {
    loss_ = duplication_ = 0;
    settle_down();
    check_nobody_waits();
    for (int round = 0; round < 2; ++round) settle_down();
    for (auto& node : nodes_) node->drop_all();
    for (int round = 0; round < 4; ++round) settle_down();
  }
  void settle_down() {
    for (int i = 0; i < 8 && !violation_; ++i) {
      while (!network_.empty()) deliver();
      check_reachable();
      pass_time(1s + kLease / 8);
      for (auto& node : nodes_) {
        if (draining_) node->drop_all();
      }
    }
    draining_ = true;
  }

  // I1: a usable reference whose lease is sure leads to a value.
  void check_reachable() {
    for (auto& node : nodes_) {
      for (const auto& [id, count] : node->handles()) {
        if (id.owner == node->self()) {
          if (!node->has_value(id)) violate("I1: an owner's own handle has no value");
          continue;
        }
        Node* owner = find(id.owner);
        const auto state = node->holdings().state(id);
        if (!owner || !state) continue;
        const bool sure =
            *state == Holdings::State::kHeld
                ? now_ < node->holdings().sure_until(id)
                : *state == Holdings::State::kRegistering && mutation_.use_before_registration;
        if (sure && !owner->has_value(id) && !owner->ledger().exists(id)) {
          violate("I1: freed while a live holder can reach it");
        }
      }
    }
  }

  // I6: who waits for a creation has learnt what became of it.
  void check_nobody_waits() {
    for (auto& node : nodes_) {
      if (node->ledger().awaited() > 0) violate("I6: somebody waits for what nobody will create");
    }
  }

  // I2: no holder, no value; and nothing is remembered of what is gone.
  void check_nothing_left() {
    for (auto& node : nodes_) {
      if (node->values() > 0) violate("I2: a value is left that nobody holds");
      if (node->ledger().objects() > 0) violate("I2: the ledger still knows an object");
      if (node->holdings().references() > 0) violate("I2: a reference is still counted");
    }
  }

  std::mt19937_64 random_;
  Mutation mutation_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Message> network_;
  Worker next_worker_ = 1;
  Time now_{std::chrono::hours(1)};
  size_t loss_ = 0, duplication_ = 0, crashes_ = 0;
  bool draining_ = false;
  uint64_t trace_ = 0xcbf29ce484222325u;
  std::optional<std::string> violation_;
};

void Node::send(Message message) {
  message.from = self_;
  world_.send(message);
}

void Node::make_local() {
  const RRefId id{self_, self_, 0, next_local_++};
  values_.insert(id);
  ++handles_[id];
  add_hold(id);
}

std::optional<RRefId> Node::create_on(Worker owner) {
  if (owner == self_) {
    make_local();
    return std::nullopt;
  }
  const RRefId id = holdings_.create(owner, world_.now());
  ++handles_[id];
  creating_[id] = world_.now() + kCallTimeout;
  send({Message::Kind::kCreate, self_, owner, id});
  talk();
  return id;
}

// Only what is confirmed, or this node's own creation, can be shown to others.
std::vector<RRefId> Node::passable() const {
  std::vector<RRefId> ids;
  for (const auto& [id, count] : handles_) ids.push_back(id);
  return ids;
}

void Node::call(Worker to, const RRefId& id) {
  if (to == self_) return;
  if (!mine(id) && holdings_.state(id) == Holdings::State::kLost) return;
  const uint64_t number = next_call_++;
  add_hold(id);
  calls_[number] = {id, world_.now() + kCallTimeout};
  Message message{Message::Kind::kCall, self_, to, id, 0, number};
  message.carries = true;
  message.early = holdings_.state(id) == Holdings::State::kCreating;
  send(message);
}

void Node::ask(Worker to) {
  if (to == self_) return;
  const uint64_t number = next_call_++;
  calls_[number] = {std::nullopt, world_.now() + kCallTimeout};
  send({Message::Kind::kCall, self_, to, {}, 0, number});
}

void Node::drop(RRefId id) {
  auto found = handles_.find(id);
  if (--found->second == 0) handles_.erase(found);
  drop_hold(id);
  talk();
}

void Node::drop_all() {
  while (!handles_.empty()) drop(handles_.begin()->first);
}

void Node::add_hold(const RRefId& id) {
  if (mine(id)) {
    if (local_holds_[id]++ == 0) ledger_.begin_local(id);
  } else {
    ++copies_[id];
  }
}

void Node::drop_hold(const RRefId& id) {
  if (!mine(id)) {
    auto copy = copies_.find(id);
    if (copy == copies_.end()) return holdings_.drop(id);
    if (--copy->second == 0) copies_.erase(copy);
    return;
  }
  if (--local_holds_[id] > 0) return;
  local_holds_.erase(id);
  ledger_.end_local(id);
  free_if_unreachable(id);
}

void Node::free_if_unreachable(const RRefId& id) {
  if (!local_holds_.contains(id) && !ledger_.is_held(id)) values_.erase(id);
}

void Node::deliver(const Message& message) {
  switch (message.kind) {
    case Message::Kind::kCreate: {
      OwnerLedger::Changes changes;
      if (message.id.owner != self_) world_.violate("I3: an id reached a wrong incarnation");
      const bool made = ledger_.create(message.id, world_.now(), changes);
      after(changes);
      if (made) values_.insert(message.id);
      if (made && never_created_.contains(message.id)) {
        world_.violate("I6: created after those who waited were told that it would not be");
      }
      Message reply{Message::Kind::kCreated, self_, message.from, message.id};
      if (made) send(reply);
      break;
    }
    case Message::Kind::kCreated:
      if (creating_.erase(message.id) > 0) {
        Holdings::Changes changes;
        holdings_.on_created(message.id, Holdings::CreationOutcome::kAnswered, changes);
        after(changes);
      }
      break;
    case Message::Kind::kSession: {
      OwnerLedger::Changes changes;
      for (const Step& step : message.session.steps) {
        if (step.kind != Step::Kind::kAccept && step.id.owner != self_) {
          world_.violate("I3: an id reached a wrong incarnation");
        }
      }
      Message reply{Message::Kind::kSessionReply, self_, message.from, {}, message.session.epoch,
                    message.session.sequence};
      reply.reply = ledger_.apply(message.from, message.session, world_.now(), changes);
      after(changes);
      send(reply);
      break;
    }
    case Message::Kind::kSessionReply: {
      Holdings::Changes changes;
      holdings_.on_reply(message.from, message.epoch, message.number, message.reply, world_.now(),
                         changes);
      after(changes);
      break;
    }
    case Message::Kind::kCall:
      if (message.carries) {
        take(message);
      } else {
        const std::vector<RRefId> held = passable();
        Message reply{Message::Kind::kCallReply, self_, message.from, {}, 0, message.number};
        if (!held.empty()) {
          reply.id = held[world_.pick(held.size())];
          reply.carries = mine(reply.id) || holdings_.state(reply.id) == Holdings::State::kHeld;
        }
        if (reply.carries) {
          add_hold(reply.id);
          reply_holds_[{message.from, reply.id}].push_back(world_.now() + kLease);
        }
        send(reply);
      }
      break;
    case Message::Kind::kCallReply:
      if (!calls_.contains(message.number)) break;  // nobody waits for it any more
      if (message.carries) {
        take(message);
      } else {
        settle(message.number);
      }
      break;
  }
  talk();
}

// A reference came with a message: it is used once it is confirmed.
void Node::take(const Message& message) {
  if (mine(message.id)) {
    if (values_.contains(message.id)) {
      add_hold(message.id);
      use(message);
    }
    return;
  }
  const Holdings::State state = holdings_.arrive(message.id, message.early, world_.now());
  if (state == Holdings::State::kHeld || mutation_.use_before_registration) return use(message);
  if (state == Holdings::State::kLost) return give_up(message);
  waiting_.insert({message.id, message});
}

// The call fails, and whoever made it is told so.
void Node::give_up(const Message& message) {
  holdings_.drop(message.id);
  if (message.kind != Message::Kind::kCallReply) return;
  settle(message.number);
  holdings_.accept(message.from, message.id, world_.now());
}

void Node::use(const Message& message) {
  ++handles_[message.id];
  if (message.kind == Message::Kind::kCall) {
    send({Message::Kind::kCallReply, self_, message.from, {}, 0, message.number});
    return;
  }
  settle(message.number);
  holdings_.accept(message.from, message.id, world_.now());
}

void Node::settle(uint64_t number) {
  auto found = calls_.find(number);
  if (found == calls_.end()) return;
  const std::optional<RRefId> held = found->second.held;
  calls_.erase(found);
  if (held) drop_hold(*held);
}

void Node::after(const OwnerLedger::Changes& changes) {
  for (const RRefId& id : changes.unheld) {
    free_if_unreachable(id);
    never_created_.erase(id);  // nobody is left who was told
  }
  for (const RRefId& id : changes.never_created) {
    if (ledger_.exists(id)) never_created_.insert(id);
  }
  for (const auto& [who, id] : changes.accepted) {
    auto found = reply_holds_.find({who, id});
    if (found == reply_holds_.end()) continue;
    found->second.pop_back();
    if (found->second.empty()) reply_holds_.erase(found);
    drop_hold(id);
  }
}

void Node::after(const Holdings::Changes& changes) {
  const auto outcome = [this](const std::vector<RRefId>& ids, bool held) {
    for (const RRefId& id : ids) {
      auto [first, last] = waiting_.equal_range(id);
      std::vector<Message> messages;
      for (auto it = first; it != last; ++it) messages.push_back(it->second);
      waiting_.erase(first, last);
      for (const Message& message : messages) {
        if (held) {
          use(message);
        } else {
          give_up(message);
        }
      }
    }
  };
  outcome(changes.held, true);
  outcome(changes.refused, false);
  outcome(changes.lost, false);
}

void Node::talk() {
  for (const Worker owner : holdings_.owners_to_tell(world_.now())) {
    if (auto message = holdings_.next_message(owner, world_.now())) {
      Message out{Message::Kind::kSession, self_, owner};
      out.session = *message;
      repeat_at_[owner] = world_.now() + kRepeatAfter;
      send(out);
    }
  }
}

void Node::on_time(Time now) {
  OwnerLedger::Changes changes;
  ledger_.expire(now, changes);
  after(changes);
  for (auto it = creating_.begin(); it != creating_.end();) {
    if (it->second > now) {
      ++it;
      continue;
    }
    Holdings::Changes lost;
    holdings_.on_created(it->first, Holdings::CreationOutcome::kUnknown, lost);
    it = creating_.erase(it);
    after(lost);
  }
  std::vector<uint64_t> expired;
  for (auto& [number, call] : calls_) {
    if (call.deadline <= now) expired.push_back(number);
  }
  for (const uint64_t number : expired) settle(number);
  for (auto it = reply_holds_.begin(); it != reply_holds_.end();) {
    auto& [key, times] = *it;
    const size_t gone = std::erase_if(times, [now](Time until) { return until <= now; });
    const RRefId id = key.second;
    it = times.empty() ? reply_holds_.erase(it) : std::next(it);
    for (size_t i = 0; i < gone; ++i) drop_hold(id);
  }
  for (auto& [owner, at] : repeat_at_) {
    if (at > now) continue;
    at = now + kRepeatAfter;
    if (!world_.alive(owner) || world_.is_mistaken_for_dead()) {
      Holdings::Changes lost;
      holdings_.on_owner_lost(owner, lost);
      after(lost);
    } else if (auto message = holdings_.repeat(owner, now)) {
      Message out{Message::Kind::kSession, self_, owner};
      out.session = *message;
      send(out);
    }
  }
  talk();
}

uint64_t seeds() {
  const char* wanted = std::getenv("WEFT_SIMULATION_SEEDS");
  if (wanted) return std::strtoull(wanted, nullptr, 10);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 3'000;  // there is one thread and little memory in it
#else
  return 100'000;
#endif
}

TEST(RRefProtocol, InvariantsHoldUnderEveryFault) {
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    const auto violation = World(seed, {}).run();
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation;
  }
}

TEST(RRefProtocol, TheSameSeedGivesTheSameTrace) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    World once(seed, {}), again(seed, {});
    once.run();
    again.run();
    EXPECT_EQ(once.trace(), again.trace()) << "seed " << seed;
  }
}

// Each part of the protocol is needed: without it some seed finds a violation.
class RRefProtocolWithout : public testing::TestWithParam<std::pair<const char*, Mutation>> {};

TEST_P(RRefProtocolWithout, SomeInvariantFails) {
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    const auto violation = World(seed, GetParam().second).run();
    if (violation) {
      std::cout << "seed " << seed << ": " << *violation << "\n";
      return;
    }
  }
  FAIL() << "nothing depends on it";
}

INSTANTIATE_TEST_SUITE_P(Parts, RRefProtocolWithout,
                         testing::Values(std::pair("Tombstones",
                                                   Mutation{{.no_tombstones = true}, false}),
                                         std::pair("Leases", Mutation{{.no_leases = true}, false}),
                                         std::pair("LeasesOfTheAwaited",
                                                   Mutation{{.no_leases_of_awaited = true}, false}),
                                         std::pair("RegistrationBeforeUse", Mutation{{}, true})),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace weft::rref
