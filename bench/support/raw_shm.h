// Memory that two processes share, and the anchors made of nothing but it: a ping-pong of one small
// message.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <vector>

namespace bench {

// The roles; the server announces where its memory is. The caller answers "polling", where both
// poll, and "sleeping", where both sleep in epoll until an eventfd wakes them: median round trips
// in microseconds.
void run_shm_server(const std::vector<std::string>& arguments);
void run_shm_caller(const std::vector<std::string>& arguments);

}  // namespace bench
