// SPDX-License-Identifier: BSD-3-Clause
#include "weft/error.h"

#include <utility>

namespace weft {

struct Error::Detail {
  ErrorCode code;
  bool may_have_run;
  std::string message;
  std::string what;
  std::string worker;
  std::string remote_type;
  std::string remote_text;
};

namespace {

bool implies_it_may_have_run(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOutcomeUnknown:
    case ErrorCode::kTimeout:
    case ErrorCode::kRemoteError:
    case ErrorCode::kPeerLost:
    case ErrorCode::kRRefLost:
    case ErrorCode::kContextAborted:
    case ErrorCode::kBadMessage:
    case ErrorCode::kCancelled:
    case ErrorCode::kBrokenPromise:
    case ErrorCode::kCallbackFailed:
      return true;
    default:
      return false;
  }
}

}  // namespace

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnavailable:
      return "kUnavailable";
    case ErrorCode::kOutcomeUnknown:
      return "kOutcomeUnknown";
    case ErrorCode::kTimeout:
      return "kTimeout";
    case ErrorCode::kRemoteError:
      return "kRemoteError";
    case ErrorCode::kUnknownFunction:
      return "kUnknownFunction";
    case ErrorCode::kSignatureMismatch:
      return "kSignatureMismatch";
    case ErrorCode::kPeerLost:
      return "kPeerLost";
    case ErrorCode::kRRefLost:
      return "kRRefLost";
    case ErrorCode::kContextAborted:
      return "kContextAborted";
    case ErrorCode::kBadMessage:
      return "kBadMessage";
    case ErrorCode::kLimitExceeded:
      return "kLimitExceeded";
    case ErrorCode::kUnauthenticated:
      return "kUnauthenticated";
    case ErrorCode::kShuttingDown:
      return "kShuttingDown";
    case ErrorCode::kNotInitialized:
      return "kNotInitialized";
    case ErrorCode::kInvalidArgument:
      return "kInvalidArgument";
    case ErrorCode::kCancelled:
      return "kCancelled";
    case ErrorCode::kBrokenPromise:
      return "kBrokenPromise";
    case ErrorCode::kCallbackFailed:
      return "kCallbackFailed";
    case ErrorCode::kStorageFailed:
      return "kStorageFailed";
  }
  return "kUnknownErrorCode";
}

Error::Error(std::shared_ptr<const Detail> detail) : detail_(std::move(detail)) {}

Error::Error(ErrorCode code, std::string message)
    : detail_(std::make_shared<Detail>(Detail{code, implies_it_may_have_run(code), message,
                                              std::string(weft::name(code)) + ": " + message, "",
                                              "", ""})) {}

Error Error::before_sending() const {
  auto detail = std::make_shared<Detail>(*detail_);
  detail->may_have_run = false;
  return Error(std::shared_ptr<const Detail>(std::move(detail)));
}

Error Error::after_sending() const {
  auto detail = std::make_shared<Detail>(*detail_);
  detail->may_have_run = true;
  return Error(std::shared_ptr<const Detail>(std::move(detail)));
}

Error Error::remote(std::string worker, std::string type, std::string text) {
  std::string message = type + " on " + worker + ": " + text;
  std::string what = std::string(weft::name(ErrorCode::kRemoteError)) + ": " + message;
  return Error(std::make_shared<const Detail>(
      Detail{ErrorCode::kRemoteError, true, std::move(message), std::move(what), std::move(worker),
             std::move(type), std::move(text)}));
}

ErrorCode Error::code() const noexcept { return detail_->code; }
const std::string& Error::message() const noexcept { return detail_->message; }
const char* Error::what() const noexcept { return detail_->what.c_str(); }
bool Error::may_have_run() const noexcept { return detail_->may_have_run; }
const std::string& Error::worker() const noexcept { return detail_->worker; }
const std::string& Error::remote_type() const noexcept { return detail_->remote_type; }
const std::string& Error::remote_text() const noexcept { return detail_->remote_text; }

}  // namespace weft
