// The errors of a call, named by what the caller may do next.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "weft/export.h"

namespace weft {

/// The closed list of outcomes other than a value; the same set in C++ and on the wire.
enum class ErrorCode : uint8_t {
  kUnavailable = 1,        // the peer could not be reached; the call did not run
  kOutcomeUnknown = 2,     // sent, then the connection broke; the call may have run
  kTimeout = 3,            // no reply before the deadline; see may_have_run()
  kRemoteError = 4,        // the function threw; message() has type, text and worker
  kUnknownFunction = 5,    // the peer's program has no function of that name
  kSignatureMismatch = 6,  // it has one, with other parameter or result types
  kPeerLost = 7,           // the peer was declared dead by heartbeat; the call may have run
  kRRefLost = 8,           // the object of a reference is gone, or was never created
  kContextAborted = 9,     // a distributed autograd pass was given up everywhere
  kBadMessage = 10,        // undecodable: a bug, or two builds that disagree
  kLimitExceeded = 11,     // a limit was hit, or there was no memory; see may_have_run()
  kUnauthenticated = 12,   // the peer belongs to another group, or is not who it claims to be
  kShuttingDown = 13,      // this agent, or the owner of a reference, has stopped
  kNotInitialized = 14,    // no agent in this process; call init_rpc first
  kInvalidArgument = 15,   // a mistake of the caller; the function did not run
  kCancelled = 16,         // given up by cancel(); may have run
  kBrokenPromise = 17,     // the promise was destroyed before it had an outcome
  kCallbackFailed = 18,    // a continuation threw something that is no weft::Error
  kStorageFailed = 19,     // a file could not be read or written, or is damaged
};

/// The enumerator's name, e.g. "kTimeout".
WEFT_API const char* name(ErrorCode code);

/// The one exception type of Weft. Cheap to copy; immutable.
class WEFT_API Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  /// A copy of this error whose may_have_run() is false.
  Error before_sending() const;
  /// A copy of this error whose may_have_run() is true.
  Error after_sending() const;

  /// An error thrown by a function on `worker`: `type` is the demangled exception type.
  static Error remote(std::string worker, std::string type, std::string text);

  ErrorCode code() const noexcept;
  const std::string& message() const noexcept;
  const char* what() const noexcept override;

  /// False when it is certain that the function did not run, so that a retry cannot run it twice.
  bool may_have_run() const noexcept;

  /// For kRemoteError: the worker, the exception's type there and its what(); else empty.
  const std::string& worker() const noexcept;
  const std::string& remote_type() const noexcept;
  const std::string& remote_text() const noexcept;

 private:
  struct Detail;
  explicit Error(std::shared_ptr<const Detail> detail);
  std::shared_ptr<const Detail> detail_;
};

}  // namespace weft
