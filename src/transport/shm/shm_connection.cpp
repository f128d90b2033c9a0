// SPDX-License-Identifier: BSD-3-Clause
#include "transport/shm/shm_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>

#include "base/descriptor_limit.h"
#include "base/futex.h"

namespace weft::transport {

namespace {

constexpr size_t kRingBytes = 256 * 1024;
constexpr uint64_t kMagic = 0x316d'6873'7466'6577;  // "weftshm1"

// What the connecting end sends first, with the descriptor of the memory.
struct Offer {
  uint64_t magic = kMagic;
  uint64_t bytes = 0;  // of the memory
  uint64_t proof = 0;  // stands in the memory too: both ends really see the same
};

// Bytes with exactly N descriptors. The system closes further ones that a peer sends.
template <size_t N>
class DescriptorMessage {
 public:
  DescriptorMessage(void* bytes, size_t size) : piece_{bytes, size} {
    header_.msg_iov = &piece_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;

  bool send(int socket, const std::array<int, N>& descriptors) {
    cmsghdr* rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptors);
    std::memcpy(CMSG_DATA(rights), &descriptors, sizeof descriptors);
    return sendmsg(socket, &header_, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(piece_.iov_len);
  }
  ssize_t receive(int socket, int flags) {
    return recvmsg(socket, &header_, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
  }
  /// After receive(): the descriptors that came; none of them unless exactly N did.
  std::array<PrivateDescriptor, N> descriptors() const {
    std::array<PrivateDescriptor, N> all;
    const cmsghdr* rights = CMSG_FIRSTHDR(&header_);
    if (!rights || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
    const size_t came = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < came && i < N; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(rights) + i * sizeof fd, sizeof fd);
      all[i] = PrivateDescriptor(fd);
    }
    if (came != N || is_cut()) return {};
    return all;
  }
  /// After receive(): whether more descriptors were sent than came.
  bool is_cut() const { return (header_.msg_flags & MSG_CTRUNC) != 0; }

 private:
  iovec piece_;
  alignas(cmsghdr) std::array<char, CMSG_LEN(N * sizeof(int))> control_{};
  msghdr header_{};
};

uint64_t random_number() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// How threads of an end sleep, as bits of a request.
constexpr uint32_t kOnBell = 1;
constexpr uint32_t kInPoller = 2;

// A socket of messages, on which nobody is made to wait: all calls say so.
bool is_lane(const PrivateDescriptor& descriptor) {
  int type = 0;
  socklen_t size = sizeof type;
  return descriptor && getsockopt(descriptor.get(), SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
         type == SOCK_SEQPACKET;
}

// In a row, of one thread, while others take what comes.
constexpr int kMostRequests = 16;

constexpr const char* kClosedByPeer = "closed by peer";
constexpr const char* kDamaged = "the peer has written nonsense into the shared memory";

}  // namespace

struct ShmConnection::Layout {
  std::atomic<uint64_t> proof;
  alignas(128) std::atomic<uint32_t> bell_of_acceptor;
  alignas(128) std::atomic<uint32_t> bell_of_connector;
  RingHeader to_acceptor;
  RingHeader to_connector;
  alignas(4096) std::byte data[2][kRingBytes];
};

// As docs/wire_protocol.md has them.
void ShmConnection::check_layout() {
  static_assert(offsetof(Layout, bell_of_acceptor) == 128);
  static_assert(offsetof(Layout, bell_of_connector) == 256);
  static_assert(offsetof(Layout, to_acceptor) == 384);
  static_assert(offsetof(Layout, to_connector) == 896);
  static_assert(offsetof(Layout, data) == 4096 && sizeof(Layout) == 528'384);
  static_assert(offsetof(RingHeader, finished) == 8 && offsetof(RingHeader, read) == 128);
  static_assert(offsetof(RingHeader, reader_asks) == 256);
  static_assert(offsetof(RingHeader, writer_asks) == 384);
}

ShmConnection::ShmConnection(PrivateDescriptor socket, std::string remote, pid_t other_process)
    : socket_(std::move(socket)), remote_(std::move(remote)), other_process_(other_process) {}

ShmConnection::~ShmConnection() {
  if (knows_memory()) finish();
}

// --- the memory ------------------------------------------------------------------------------

std::unique_ptr<ShmConnection> ShmConnection::offer(PrivateDescriptor socket, std::string remote,
                                                    pid_t other_process) {
  std::unique_ptr<ShmConnection> connection(
      new ShmConnection(std::move(socket), std::move(remote), other_process));
  int lane[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, lane) != 0)
    throw Error(ErrorCode::kUnavailable, std::string("no socket pair: ") + strerror(errno));
  PrivateDescriptor ours(lane[0]);
  const PrivateDescriptor theirs(lane[1]);
  connection->use(SharedMemory::create(sizeof(Layout)), std::move(ours), End::kConnecting);
  connection->hand_over_memory(theirs);
  return connection;
}

std::unique_ptr<ShmConnection> ShmConnection::await(PrivateDescriptor socket, std::string remote,
                                                    pid_t other_process) {
  return std::unique_ptr<ShmConnection>(
      new ShmConnection(std::move(socket), std::move(remote), other_process));
}

void ShmConnection::use(SharedMemory memory, PrivateDescriptor lane, End end) {
  memory_ = std::move(memory);
  lane_ = std::move(lane);
  auto& layout = *reinterpret_cast<Layout*>(memory_.data());
  const RingMemory to_acceptor{&layout.to_acceptor, layout.data[0], kRingBytes};
  const RingMemory to_connector{&layout.to_connector, layout.data[1], kRingBytes};
  const bool connects = end == End::kConnecting;
  out_.emplace(connects ? to_acceptor : to_connector);
  in_.emplace(connects ? to_connector : to_acceptor);
  own_bell_ = connects ? &layout.bell_of_connector : &layout.bell_of_acceptor;
  their_bell_ = connects ? &layout.bell_of_acceptor : &layout.bell_of_connector;
  has_memory_.store(true, std::memory_order_release);
}

void ShmConnection::hand_over_memory(const PrivateDescriptor& their_lane) {
  Offer offer;
  offer.bytes = memory_.size();
  offer.proof = random_number();
  reinterpret_cast<Layout*>(memory_.data())->proof = offer.proof;
  DescriptorMessage<2> message(&offer, sizeof offer);
  if (!message.send(socket_.get(), {memory_.descriptor().get(), their_lane.get()})) {
    throw Error(ErrorCode::kUnavailable,
                std::string("cannot hand over shared memory: ") + strerror(errno));
  }
  memory_.close_descriptor();
}

bool ShmConnection::take_memory() {
  const base::MutexLock lock(mutex_);
  if (knows_memory() || !refusal_.empty()) return knows_memory();
  refusal_ = adopt_offered();
  if (!refusal_.empty()) gone_.store(true, std::memory_order_release);
  return knows_memory();
}

// Returns why not, if that is certain. The offer stays where it is: it is a sign for a poller that
// was armed when there was no memory yet in which it could have asked for one.
std::string ShmConnection::adopt_offered() {
  Offer offer;
  ssize_t got;
  std::array<PrivateDescriptor, 2> offered;
  for (bool is_last = false;; is_last = true) {
    DescriptorMessage<2> message(&offer, sizeof offer);
    do {
      got = message.receive(socket_.get(), MSG_PEEK);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return errno == EAGAIN ? "" : strerror(errno);
    if (got == 0) return kClosedByPeer;
    offered = message.descriptors();
    // This process may have had no room for the descriptors.
    if (!message.is_cut() || is_last || !base::raise_descriptor_limit()) break;
  }
  auto& [memory, lane] = offered;
  if (got != ssize_t{sizeof offer} || offer.magic != kMagic || offer.bytes != sizeof(Layout) ||
      !memory || !is_lane(lane)) {
    return "the peer offered no shared memory that this version can use";
  }
  try {
    SharedMemory shared = SharedMemory::adopt(memory, offer.bytes);
    if (reinterpret_cast<Layout*>(shared.data())->proof.load() != offer.proof)
      return "the memory that the peer offered is not shared";
    use(std::move(shared), std::move(lane), End::kAccepting);
  } catch (const Error& refused) {
    return refused.message();
  }
  return "";
}

// --- bytes -----------------------------------------------------------------------------------

IoResult ShmConnection::send(const iovec* buffers, int count) {
  const bool has_rings = has_memory();
  if (is_over()) return closed();
  if (!has_rings) return {IoResult::Status::kWouldBlock};
  const RingResult sent = out_->write(buffers, count);
  if (sent.state == RingState::kDamaged) return {IoResult::Status::kClosed, 0, kDamaged};
  if (sent.state == RingState::kEmpty) return {IoResult::Status::kWouldBlock};
  give_signs(out_->take_request());
  return {IoResult::Status::kDone, sent.bytes};
}

IoResult ShmConnection::receive(void* to, size_t size) {
  const bool has_rings = has_memory();
  // Before the bytes: those that came before the end are read.
  const bool over = is_over();
  if (!has_rings) return over ? closed() : IoResult{IoResult::Status::kWouldBlock};
  const RingResult got = in_->read(static_cast<std::byte*>(to), size);
  give_signs(in_->take_request());
  switch (got.state) {
    case RingState::kFine:
      return {IoResult::Status::kDone, got.bytes};
    case RingState::kEmpty:
      return over ? closed() : IoResult{IoResult::Status::kWouldBlock};
    case RingState::kFinished:
      return closed();
    case RingState::kDamaged:
      break;
  }
  return {IoResult::Status::kClosed, 0, kDamaged};
}

IoResult ShmConnection::wait_and_receive(void* to, size_t size) {
  IoResult got = receive(to, size);
  if (got.status != IoResult::Status::kWouldBlock) return got;
  wait(kReadable, kLongestReceive);
  return receive(to, size);
}

IoResult ShmConnection::closed() const {
  std::string why = kClosedByPeer;
  if (!knows_memory()) {
    const base::MutexLock lock(mutex_);
    if (!refusal_.empty()) why = refusal_;
  }
  return {IoResult::Status::kClosed, 0, std::move(why)};
}

void ShmConnection::finish() {
  out_->finish();
  give_signs(out_->take_request());
}

void ShmConnection::finish_sending() {
  if (has_memory()) finish();
}

void ShmConnection::close_both_ways() {
  closed_.store(true, std::memory_order_seq_cst);
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (!knows_memory()) return;
  out_->finish();
  give_signs(kOnBell);
  own_bell_->fetch_add(1, std::memory_order_seq_cst);
  base::futex_wake_all(*own_bell_, base::FutexOf::kAllProcesses);
}

// --- signs -----------------------------------------------------------------------------------

// To threads of the other end.
void ShmConnection::give_signs(uint32_t bits) {
  if (bits & kOnBell) {
    their_bell_->fetch_add(1, std::memory_order_seq_cst);
    base::futex_wake_all(*their_bell_, base::FutexOf::kAllProcesses);
  }
  if (bits & kInPoller) {
    const char sign = 1;
    // If there is no room, signs are there of which the peer has not heard yet: it reads those that
    // it has heard of long before.
    if (::send(socket_.get(), &sign, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
      gone_.store(true, std::memory_order_release);
  }
}

// To this end's poller. The first sign is the offer of the memory.
void ShmConnection::take_sign(bool hung_up) {
  const bool has_rings = has_memory();
  if (hung_up) gone_.store(true, std::memory_order_release);
  if (has_rings && unread_signs_ >= kMostUnreadSigns) read_signs();
}

void ShmConnection::read_signs() {
  unread_signs_ = 0;
  std::array<char, 256> signs;
  const ssize_t got = recv(socket_.get(), signs.data(), signs.size(), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
    gone_.store(true, std::memory_order_release);
}

// --- descriptors -----------------------------------------------------------------------------

bool ShmConnection::hand_over(const PrivateDescriptor& descriptor) {
  char nothing = 0;
  DescriptorMessage<1> message(&nothing, sizeof nothing);
  return has_memory() && message.send(lane_.get(), {descriptor.get()});
}

PrivateDescriptor ShmConnection::take_descriptor() {
  char nothing = 0;
  DescriptorMessage<1> message(&nothing, sizeof nothing);
  if (!has_memory() || message.receive(lane_.get(), 0) < 0) return {};
  return std::move(message.descriptors()[0]);  // also with no byte: they are to be closed
}

// --- the end ---------------------------------------------------------------------------------

void ShmConnection::notice_death() {
  pollfd polled{socket_.get(), POLLRDHUP, 0};
  if (poll(&polled, 1, 0) > 0) gone_.store(true, std::memory_order_release);
}

// --- waiting ---------------------------------------------------------------------------------

Readiness ShmConnection::look(uint32_t interest) const {
  const bool over = is_over();
  const bool has_rings = knows_memory();
  Readiness ready;
  if (interest & kReadable) ready.readable = over || (has_rings && in_->has_bytes());
  if (interest & kWritable) ready.writable = over || (has_rings && out_->has_room());
  ready.hung_up = over;
  return ready;
}

Readiness ShmConnection::arm(uint32_t interest) { return ask(interest, kInPoller); }

// A request that finds something is taken back. If another thread of this end has taken what was
// found before look() sees it, nobody has asked, so this is done again.
Readiness ShmConnection::ask(uint32_t interest, uint32_t how) {
  if (!knows_memory()) return look(interest);
  for (int i = 0; i < kMostRequests; ++i) {
    bool asked = true;
    if (how == kInPoller) unread_signs_ += 2;  // one for each ring
    if (interest & kReadable) asked &= in_->ask_for_bytes(how);
    if (interest & kWritable) asked &= out_->ask_for_room(how);
    give_signs(in_->take_request());  // before this end sleeps
    const Readiness ready = look(interest);
    if (ready.any() || asked) return ready;
  }
  return {(interest & kReadable) != 0, (interest & kWritable) != 0, false};  // who tries will see
}

Readiness ShmConnection::wait(uint32_t interest, std::optional<base::Duration> limit) {
  using SteadyClock = std::chrono::steady_clock;
  if (limit && limit->count() <= 0) {
    has_memory();
    notice_death();
    return look(interest);
  }
  const base::Time until = limit ? base::later(SteadyClock::now(), *limit) : base::Time::max();
  for (;;) {
    const bool has_rings = has_memory();
    // Before this thread asks: a sign that it is given from then on ends its sleep.
    const uint32_t signs = has_rings ? own_bell_->load(std::memory_order_seq_cst) : 0;
    const Readiness ready = ask(interest, kOnBell);
    const base::Time now = SteadyClock::now();
    if (ready.any() || now >= until) return ready;
    const base::Time next_look = std::min(until, base::later(now, kLongestReceive));
    if (has_rings) {
      base::futex_wait(*own_bell_, signs, next_look, base::FutexOf::kAllProcesses);
    } else {
      pollfd polled{socket_.get(), POLLIN, 0};
      poll(&polled, 1, static_cast<int>(kLongestReceive.count()));
    }
    if (SteadyClock::now() >= next_look) notice_death();
  }
}

}  // namespace weft::transport
