// Remote references: create an object on another worker, use it, share it, drop it.
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <weft/rref.h>

#include "check.h"

struct Counter {
  explicit Counter(int64_t start) : value(start) { ++alive; }
  Counter(const Counter&) = delete;
  ~Counter() { --alive; }

  int64_t add(int64_t n) { return value += n; }
  int64_t get() const { return value; }

  int64_t value;
  static inline int64_t alive = 0;
};

int64_t alive() { return Counter::alive; }

// Receives a reference, uses it, keeps it.
std::vector<weft::RRef<Counter>> kept;
int64_t keep_and_add(weft::RRef<Counter> counter, int64_t n) {
  CHECK_THAT(counter.confirmed_by_owner());  // always, before a function starts
  kept.push_back(counter);
  return counter.rpc_sync<&Counter::add>(n);
}
void drop_all() { kept.clear(); }

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a + b; }
at::Tensor boom() { throw std::runtime_error("boom"); }

int run_worker(int rank, int) {
  weft::init_rpc("worker" + std::to_string(rank));
  if (rank == 0) {
    {
      weft::RRef<Counter> counter = weft::remote<Counter>("worker1", 10);  // constructs it there
      CHECK_THAT(!counter.is_owner() && counter.owner().name == "worker1");
      CHECK_THAT(counter.rpc_sync<&Counter::add>(5) == 15);
      CHECK_THAT(counter.rpc_async<&Counter::get>().wait() == 15);
      CHECK_THAT(counter.remote<&Counter::get>().to_here() ==
                 15);  // the result stays there until fetched
      CHECK_FAILS_WITH(counter.local_value(), weft::ErrorCode::kInvalidArgument);

      // To a third worker, back to the owner, and through both.
      CHECK_THAT(weft::rpc_sync<keep_and_add>("worker2", counter, 1) == 16);
      CHECK_THAT(weft::rpc_sync<keep_and_add>("worker1", counter, 1) == 17);
      CHECK_THAT(weft::rpc_sync<alive>("worker1") == 1);
    }
    // Our handle is gone, worker2 and worker1 still hold theirs.
    CHECK_THAT(weft::rpc_sync<alive>("worker1") == 1);
    weft::rpc_sync<drop_all>("worker2");
    weft::rpc_sync<drop_all>("worker1");
    for (int i = 0; i < 500 && weft::rpc_sync<alive>("worker1") != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_THAT(weft::rpc_sync<alive>("worker1") == 0);

    // A value, computed there and left there.
    weft::RRef<at::Tensor> sum = weft::remote<add>("worker1", at::ones(3), at::ones(3));
    CHECK_THAT(at::equal(sum.to_here(), at::full({3}, 2.0)));
    weft::RRef<at::Tensor> broken = weft::remote<boom>("worker1");
    CHECK_FAILS_WITH(broken.to_here(), weft::ErrorCode::kRemoteError);

    // A local value, shared by reference.
    weft::RRef<std::string> mine(std::string("here"));
    CHECK_THAT(mine.is_owner() && mine.local_value() == "here" && mine.to_here() == "here");
    CHECK_THAT(weft::rpc_sync<[](weft::RRef<std::string> s) { return s.to_here() + "!"; }>(
                   "worker2", mine) == "here!");
  }
  weft::shutdown();
  if (rank == 0) std::puts("ok");
  return 0;
}

int main(int argc, char** argv) { return weft::launch(argc, argv, 3, run_worker); }
