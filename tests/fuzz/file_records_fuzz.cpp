// A rendezvous file with arbitrary bytes: it holds the same values whether it is read at once or
// byte by byte, a record that is found encodes to bytes that hold it again, and nothing but
// kInvalidArgument is thrown.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>

#include "rendezvous/file_records.h"
#include "rendezvous/member_record.h"
#include "weft/error.h"

namespace weft::rendezvous {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename F>
bool refuses(F body) {
  try {
    body();
    return false;
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kInvalidArgument);
    return true;
  }
}

void check_value(const std::string& key, const Bytes& value) {
  require(!value.empty() && value.size() <= FileRecords::kValueLimit);
  FileRecords again;
  const std::string& header = FileRecords::header();
  again.take({reinterpret_cast<const uint8_t*>(header.data()), header.size()});
  again.take(FileRecords::encode(key, value));
  require(again.find(key) == value && again.unfinished() == 0);
  refuses([&] { decode_record(value, 0); });
}

}  // namespace
}  // namespace weft::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::rendezvous;
  FileRecords at_once, in_bytes;
  const bool refused = refuses([&] { at_once.take({data, size}); });
  require(refused == refuses([&] {
            for (size_t i = 0; i < size; ++i) in_bytes.take({data + i, 1});
          }));
  refuses([&] { decode_record({data, data + size}, 0); });
  if (refused) return 0;
  require(at_once.unfinished() == in_bytes.unfinished() && at_once.unfinished() <= size);
  for (const char* key : {"weft/0/0", "weft/0/1", "weft/0/1/confirmed"}) {
    const auto value = at_once.find(key);
    require(value == in_bytes.find(key));
    if (value) check_value(key, *value);
  }
  return 0;
}
